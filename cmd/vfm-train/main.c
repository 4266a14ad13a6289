/* vfm-train: manifest -> training. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/opt.h"
#include "train/context.h"
#include "train/initial.h"
#include "train/parity.h"
#include "train/run.h"

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

static const char *config_path, *preset, *manifest, *held_out, *out_dir, *resume = "auto", *init, *init_part = "model",
									 *allow_change = "", *parity;
static struct vfm_strlist sets;
static int64_t steps = VFM_UNSET;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;
static bool print_config, print_mesh, help_config;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 'c', "config", "FILE", "JSON configuration (vfm-config(5))", &config_path},
	{VFM_OPT_STR, 0, "model", "PRESET", "start from a preset, such as dit-b (vfm-config(5))", &preset},
	{VFM_OPT_LIST, 0, "set", "KEY=VALUE", "override one key of the configuration; may be repeated", &sets},
	{VFM_OPT_STR, 0, "data", "MANIFEST", "manifest of vfm-pack(1) to train on", &manifest},
	{VFM_OPT_STR, 0, "held-out", "MANIFEST", "manifest of held-out data, whose loss is recorded (eval.every)",
		&held_out},
	{VFM_OPT_STR, 'o', "out", "RUN", "directory of checkpoints and metrics; created if missing", &out_dir},
	{VFM_OPT_INT, 0, "steps", "N", "same as --set train.steps=N", &steps},
	{VFM_OPT_STR, 0, "resume", "auto|no|CKPT", "resume from the newest complete checkpoint in RUN (auto)", &resume},
	{VFM_OPT_STR, 0, "init", "PATH",
		"start at step 0 with the weights of a checkpoint, a run, or files of another program", &init},
	{VFM_OPT_STR, 0, "init-part", "model|ema", "which weights --init takes (model)", &init_part},
	{VFM_OPT_STR, 0, "allow-change", "LIST",
		"what may differ from the checkpoint: model, diffusion, schedule, plan, encoders, captions",
		&allow_change},
	VFM_CONTEXT_OPTS(&rank_opts),
	{VFM_OPT_FLAG, 0, "print-config", NULL, "print the resolved configuration and exit", &print_config},
	{VFM_OPT_FLAG, 0, "print-mesh", NULL, "print the mesh coordinates of each rank and exit", &print_mesh},
	{VFM_OPT_STR, 0, "dump-parity", "DIR",
		"write one step on synthetic data to DIR, for comparison with other programs", &parity},
	{VFM_OPT_FLAG, 0, "help-config", NULL, "list the keys of the configuration and exit", &help_config},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-train",
	.synopsis = "[-q] [-c FILE] [--model PRESET] [--set KEY=VALUE ...] [--steps N] [--resume "
		    "auto|no|CKPT] [--init PATH [--init-part model|ema]] [--allow-change LIST] [--held-out "
		    "MANIFEST] " VFM_CONTEXT_SYNOPSIS " --data MANIFEST -o RUN\n"
		    "[-c FILE] [--model PRESET] [--set KEY=VALUE ...] --print-config\n"
		    "[-c FILE] [--model PRESET] [--set KEY=VALUE ...] [-n N] --print-mesh\n"
		    "[-c FILE] [--model PRESET] [--set KEY=VALUE ...] [--init PATH] [--steps N] --dump-parity DIR\n"
		    "--help-config",
	.summary = "train a video diffusion transformer",
	.opts = opts,
};

static int read_config(struct vfm_config *c, struct vfm_err *err)
{
	vfm_config_defaults(c);
	if (init)
		TRY(vfm_config_initial(c, init, out_dir, err));
	if (preset)
		TRY(vfm_model_preset(preset, &c->model, err) < 0 ? vfm_err_context(err, "--model") : 0);
	if (config_path)
		TRY(vfm_config_file(c, config_path, err));
	for (int i = 0; i < sets.n; i++)
		TRY(vfm_config_set(c, sets.v[i], err));
	if (steps >= 0)
		c->train.steps = steps;
	else if (steps != VFM_UNSET)
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
		clearerr(stdout); /* vfm_run handles the closed pipe; main must not report it again */
	return rc;
}

static int dump_parity(const struct vfm_config *c, struct vfm_err *err)
{
	const struct vfm_parity_opts p = {.init = init, .init_part = init_part, .dir = parity};
	struct vfm_device d;
	int rc;

	TRY(vfm_device_open(&d, rank_opts.device, err) < 0 ? vfm_err_context(err, "--device") : 0);
	rc = vfm_parity_dump(c, &p, d.stream, err);
	vfm_device_close(&d);
	return rc;
}

static int train(struct vfm_context *x, const struct vfm_config *c, struct vfm_err *err)
{
	struct vfm_run_opts o = {.manifest = manifest,
		.held_out = held_out,
		.dir = out_dir,
		.resume = resume,
		.init = init,
		.init_part = init_part,
		.stop = &stop,
		.on_step = print_record};

	TRY(vfm_change_parse(&o.allow_change, allow_change, err)); /* check_train_options has validated it */
	TRY(vfm_context_open(x, c, err));
	vfm_info("%s: %s, %lld parameters", x->device.dev->t->name, x->device.dev->descr,
		(long long)vfm_model_params(&c->model));
	return vfm_run(x, c, &o, err);
}

/* Prints the mesh of the ranks that -n or srun starts, or else of the number that the configuration needs. */
static int show_mesh(const struct vfm_config *c, const struct vfm_launch *l, int64_t ranks, struct vfm_err *err)
{
	struct vfm_parallel p = c->parallel;
	int64_t asked = p.tp * p.cp * p.pp * (p.dp ? p.dp : 1);
	int64_t world = l->size > 1 ? l->size : ranks != VFM_UNSET ? ranks : asked;
	struct vfm_buf b = {0};

	TRY(vfm_parallel_check(&p, &c->model, (int)world, err));
	if (l->rank > 0)
		return 0;
	vfm_mesh_print(&b, &p, l->size > 1 ? l->node_of : NULL);
	fputs(b.data, stdout);
	vfm_buf_release(&b);
	return 0;
}

static int check_train_options(struct vfm_err *err)
{
	unsigned changes;

	if (!print_mesh && (!manifest || !out_dir))
		return vfm_fail(
			err, VFM_EUSAGE, "%s is missing (see vfm-train -h)", manifest ? "-o RUN" : "--data MANIFEST");
	if (vfm_change_parse(&changes, allow_change, err) < 0)
		return vfm_err_context(err, "--allow-change");
	if (strcmp(init_part, "model") != 0 && strcmp(init_part, "ema") != 0)
		return vfm_fail(err, VFM_EUSAGE, "--init-part: expected model or ema, got '%s'", init_part);
	if (init && strcmp(resume, "auto") != 0 && strcmp(resume, "no") != 0)
		return vfm_fail(err, VFM_EUSAGE, "give either --init or --resume CKPT, not both");
	return vfm_context_check(&rank_opts, err);
}

static int train_rank(struct vfm_context *x, void *asked, struct vfm_err *err)
{
	struct vfm_config c;

	TRY(vfm_job_agree(&x->job, read_config(&c, err), err));
	if (print_mesh)
		return vfm_job_agree(&x->job, show_mesh(&c, &x->job.launch, *(int64_t *)asked, err), err);
	return train(x, &c, err);
}

/* Starts the ranks and runs train_rank on each.  --print-mesh starts none and uses -n only as a number. */
static int run_ranks(struct vfm_err *err)
{
	struct sigaction sa = {.sa_handler = on_signal};
	int64_t asked = rank_opts.ranks;

	TRY(vfm_job_say_once(check_train_options(err), err));
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	rank_opts.recorder_dir = out_dir;
	if (print_mesh)
		rank_opts.ranks = VFM_UNSET;
	return vfm_context_run(&rank_opts, train_rank, &asked, err);
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
	if (rc != 0)
		return vfm_cmd_exit(vfm_job_say_once(rc, &err), &err);
	if (help_config) {
		struct vfm_buf b = {0};

		vfm_config_describe(&b);
		fputs(b.data, stdout);
		vfm_buf_release(&b);
	} else if (print_config) {
		rc = read_config(&c, &err);
		if (rc == 0)
			print_resolved(&c);
	} else if (parity) {
		rc = read_config(&c, &err);
		if (rc == 0)
			rc = dump_parity(&c, &err);
	} else {
		rc = run_ranks(&err);
	}
	vfm_strlist_release(&sets);
	return vfm_cmd_exit(rc, &err);
}
