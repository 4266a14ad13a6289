/* vfm-train: manifest -> training. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/opt.h"
#include "base/par.h"
#include "mesh/mesh.h"
#include "train/device.h"
#include "train/job.h"
#include "train/parity.h"
#include "train/run.h"

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

static const char *config_path, *preset, *manifest, *out_dir, *resume = "auto", *device = "cpu", *parity;
static struct vfm_strlist sets;
enum { UNSET = INT32_MIN };
static int64_t steps = UNSET, threads = UNSET, ranks = UNSET;
static bool print_config, print_mesh, help_config;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 'c', "config", "FILE", "JSON configuration (vfm-config(5))", &config_path},
	{VFM_OPT_STR, 0, "model", "PRESET",
		"start from a preset: dit-s, b, l, xl, 7b, 28b, moviegen-1b, 5b, 30b, stdit-xl, moe-1b", &preset},
	{VFM_OPT_LIST, 0, "set", "KEY=VALUE", "override one key of the configuration; may be repeated", &sets},
	{VFM_OPT_STR, 0, "data", "MANIFEST", "what to train on, from vfm-pack(1)", &manifest},
	{VFM_OPT_STR, 'o', "out", "RUN", "directory of checkpoints and metrics; made if it is not there", &out_dir},
	{VFM_OPT_INT, 0, "steps", "N", "short for --set train.steps=N", &steps},
	{VFM_OPT_STR, 0, "resume", "auto|no|CKPT", "go on from the newest complete checkpoint in RUN (auto)", &resume},
	{VFM_OPT_INT, 'n', "ranks", "N", "start N ranks on this host (under Slurm, srun starts them)", &ranks},
	{VFM_OPT_STR, 0, "device", "cpu|cuda", "where to compute", &device},
	{VFM_OPT_INT, 0, "threads", "N", "compute threads of a rank", &threads},
	{VFM_OPT_FLAG, 0, "print-config", NULL, "print the resolved configuration and exit", &print_config},
	{VFM_OPT_FLAG, 0, "print-mesh", NULL, "print which rank is where in the mesh and exit", &print_mesh},
	{VFM_OPT_STR, 0, "dump-parity", "DIR", "write down one step on made-up data, to check the arithmetic", &parity},
	{VFM_OPT_FLAG, 0, "help-config", NULL, "list the keys of the configuration and exit", &help_config},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-train",
	.synopsis = "[-q] [-c FILE] [--model PRESET] [--set KEY=VALUE ...] [--steps N] [--resume auto|no|CKPT] "
		    "[-n N] [--device cpu|cuda] [--threads N] --data MANIFEST -o RUN\n"
		    "[-c FILE] [--model PRESET] [--set KEY=VALUE ...] --print-config\n"
		    "[-c FILE] [--model PRESET] [--set KEY=VALUE ...] [-n N] --print-mesh\n"
		    "[-c FILE] [--model PRESET] [--set KEY=VALUE ...] --dump-parity DIR\n"
		    "--help-config",
	.summary = "train a video diffusion transformer",
	.opts = opts,
};

static int configure(struct vfm_config *c, struct vfm_err *err)
{
	vfm_config_defaults(c);
	if (preset)
		TRY(vfm_model_preset(preset, &c->model, err) < 0 ? vfm_err_context(err, "--model") : 0);
	if (config_path)
		TRY(vfm_config_file(c, config_path, err));
	for (int i = 0; i < sets.n; i++)
		TRY(vfm_config_set(c, sets.v[i], err));
	if (steps >= 0)
		c->train.steps = steps;
	else if (steps != UNSET)
		return vfm_fail(err, VFM_EUSAGE, "--steps: expected 0 or more, got %lld", (long long)steps);
	return vfm_config_check(c, err);
}

static void print_resolved(const struct vfm_config *c)
{
	json_t *o = vfm_config_to_json(c);
	struct vfm_buf b = {0};

	vfm_json_text(&b, o, 2);
	puts(b.data);
	vfm_buf_release(&b);
	json_decref(o);
}

static int print_record(void *ctx, const json_t *record, struct vfm_err *err)
{
	(void)ctx;
	int rc = vfm_jsonl_write(stdout, record, err);

	if (rc == 0 && fflush(stdout))
		rc = vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write stdout");
	if (rc == VFM_EPIPE)
		clearerr(stdout); /* the run ends in its own way; this is not to be reported once more */
	return rc;
}

static int dump_parity(const struct vfm_config *c, struct vfm_err *err)
{
	struct vfm_device d;
	int rc;

	TRY(vfm_device_open(&d, device, err) < 0 ? vfm_err_context(err, "--device") : 0);
	rc = vfm_parity_dump(c, d.stream, parity, err);
	vfm_device_close(&d);
	return rc;
}

static int train(struct vfm_job *job, const struct vfm_config *c, struct vfm_err *err)
{
	struct vfm_run_opts o = {.job = job,
		.manifest = manifest,
		.dir = out_dir,
		.resume = resume,
		.stop = &stop,
		.on_step = print_record};
	struct vfm_device d = {0};
	int rc;

	if (threads != UNSET)
		vfm_par_set_threads((int)threads);
	rc = vfm_device_open_rank(
		&d, device, job->launch.local_rank, job->launch.local_size, c->train.deterministic, err);
	if (rc < 0)
		vfm_err_context(err, "--device");
	TRY(vfm_job_agree(job, rc, err));
	vfm_info("%s: %s, %lld parameters", d.dev->t->name, d.dev->descr, (long long)vfm_model_params(&c->model));
	rc = vfm_device_join(&d, job, err);
	o.world = d.world;
	if (rc == 0)
		rc = vfm_run(c, d.stream, &o, err);
	vfm_device_close(&d);
	return rc;
}

/* Of the ranks that -n or srun starts; else of as many as the configuration asks for. */
static int show_mesh(const struct vfm_config *c, const struct vfm_launch *l, struct vfm_err *err)
{
	struct vfm_parallel p = c->parallel;
	int64_t world = l->size > 1 ? l->size : ranks != UNSET ? ranks : p.tp * p.cp * p.pp * (p.dp ? p.dp : 1);
	struct vfm_buf b = {0};

	TRY(vfm_parallel_check(&p, &c->model, (int)world, err));
	if (l->rank > 0)
		return 0;
	vfm_mesh_print(&b, &p, l->size > 1 ? l->node_of : NULL);
	fputs(b.data, stdout);
	vfm_buf_release(&b);
	return 0;
}

static int check_options(struct vfm_err *err)
{
	if (!print_mesh && (!manifest || !out_dir))
		return vfm_fail(
			err, VFM_EUSAGE, "%s is missing (see vfm-train -h)", manifest ? "-o RUN" : "--data MANIFEST");
	if (threads != UNSET && (threads < 1 || threads > 4096))
		return vfm_fail(err, VFM_EUSAGE, "--threads: expected 1 to 4096, got %lld", (long long)threads);
	if (ranks != UNSET && (ranks < 1 || ranks > 1 << 20))
		return vfm_fail(err, VFM_EUSAGE, "-n: expected 1 or more, got %lld", (long long)ranks);
	return 0;
}

/* Everything that several ranks do, from their start to their end. */
static int run_job(struct vfm_err *err)
{
	struct sigaction sa = {.sa_handler = on_signal};
	struct vfm_config c;
	struct vfm_job job;
	int rc;

	TRY(check_options(err) < 0 ? vfm_job_mute() ? (err->msg[0] = '\0', err->code) : err->code : 0);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	rc = vfm_job_start(&job, ranks == UNSET || print_mesh ? 0 : (int)ranks, out_dir, err);
	if (rc == 1)
		exit(job.launch.status);
	TRY(rc);
	rc = vfm_job_agree(&job, configure(&c, err), err);
	if (rc == 0)
		rc = print_mesh ? vfm_job_agree(&job, show_mesh(&c, &job.launch, err), err) : train(&job, &c, err);
	return vfm_job_end(&job, rc, err);
}

int main(int argc, char **argv)
{
	struct vfm_err err = {0};
	struct vfm_config c;
	int rc, n;

	vfm_cmd_init(argv[0]);
	vfm_version_more = vfm_device_features;
	rc = vfm_opt_parse(&cmd, argc, argv, &n, &err);
	if (rc == 0 && n > 0)
		rc = vfm_fail(&err, VFM_EUSAGE, "unexpected operand '%s'", argv[1]);
	if (rc < 0 && vfm_job_mute())
		err.msg[0] = '\0';
	if (rc != 0)
		return vfm_cmd_exit(rc, &err);
	if (help_config) {
		struct vfm_buf b = {0};

		vfm_config_describe(&b);
		fputs(b.data, stdout);
		vfm_buf_release(&b);
	} else if (print_config) {
		rc = configure(&c, &err);
		if (rc == 0)
			print_resolved(&c);
	} else if (parity) {
		rc = configure(&c, &err);
		if (rc == 0)
			rc = dump_parity(&c, &err);
	} else {
		rc = run_job(&err);
	}
	vfm_strlist_release(&sets);
	return vfm_cmd_exit(rc, &err);
}
