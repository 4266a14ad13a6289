/* vfm-train: plan -> training. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/file.h"
#include "io/opt.h"
#include "io/table.h"
#include "dry_run.h"
#include "io/version.h"
#include "train/job/context.h"
#include "train/job/plan_check.h"
#include "train/predict/parity.h"
#include "train/run/experts.h"
#include "train/run/origin.h"
#include "train/run/phased.h"
#include "train/run/run.h"
#include "train/run/run_report.h"
#include "train/sample/prompts.h"

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = stop + 1;
}

/* An option that is given has another address, even with the text of its default. */
static const char resume_default[] = "auto", part_default[] = "model";
static const char *config_path, *preset, *plan, *phases_path, *held_out, *out_dir,
	*resume = resume_default, *init, *low_noise, *init_part = part_default, *init_lora, *low_noise_lora,
	*allow_change = "", *parity;
static json_t *config; /* of config_path; NULL: none */
static struct vfm_strlist sets, track;
static struct vfm_trackers *trackers; /* on rank 0 */
static struct vfm_phases phases;      /* n 0: one run, without phases */
static int64_t steps = VFM_UNSET;
static struct vfm_shard_cache_opts cache;
static struct vfm_preview_opts preview = VFM_PREVIEW_DEFAULTS;
static int64_t sample_every = VFM_UNSET;
static const char *sample_fps;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;
static bool skip_missing, print_config, print_mesh, help_config, dry_run, report;
static struct dry_run_cli dry = {.table = {.format = (enum vfm_table_format) - 1},
	.context = VFM_UNSET,
	.packs = VFM_UNSET,
	.mtbf_h = NAN,
	.save_s = NAN,
	.restart_s = NAN};

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 'c', "config", "FILE", "configuration, JSON, YAML or TOML (vfm-config(5))", &config_path},
	{VFM_OPT_STR, 0, "model", "PRESET", "start from a preset, such as dit-b (vfm-config(5))", &preset},
	{VFM_OPT_LIST, 0, "set", "KEY=VALUE",
		"override one key of the configuration; PHASE:KEY=VALUE for one phase; may be repeated", &sets},
	{VFM_OPT_STR, 0, "data", "PLAN", "plan of vfm-pack(1) to train on", &plan},
	{VFM_OPT_STR, 0, "phases", "FILE", "stages.json of vfm-pack(1): train its phases in turn, each in RUN/NAME",
		&phases_path},
	{VFM_OPT_STR, 0, "held-out", "PLAN", "plan of held-out data, whose loss is recorded (eval.every)", &held_out},
	{VFM_OPT_STR, 0, "prompts", "FILE",
		"sample these prompts while the run trains (vfm-prompts(5), eval.sample_every)", &preview.prompts},
	{VFM_OPT_INT, 0, "sample-every", "N", "same as --set eval.sample_every=N", &sample_every, 1, HUGE_VAL},
	{VFM_OPT_STR, 0, "fps", "N[/D]", "frame rate of the sampled files (8)", &sample_fps},
	{VFM_OPT_STR, 0, "expert", "PATH",
		"checkpoint for samples at the noise levels that this run does not train (Wan 2.2)", &preview.expert},
	VFM_ENCODER_VAE_OPTS(&preview.encoder),
	VFM_ENCODER_TEXT_OPTS(&preview.encoder),
	VFM_ENCODER_IMAGE_OPTS(&preview.encoder),
	{VFM_OPT_STR, 0, "exec", "CMD", "decode samples with a child: vfm-exec(7)", &preview.encoder.exec},
	{VFM_OPT_STR, 0, "text-exec", "CMD", "embed the prompts with a child", &preview.encoder.text_exec},
	{VFM_OPT_STR, 0, "text2-exec", "CMD", "embed the prompts with a child that is the second text encoder",
		&preview.encoder.text2_exec},
	{VFM_OPT_STR, 0, "image-exec", "CMD", "encode the pictures of prompts to image rows with a child",
		&preview.encoder.image_exec},
	VFM_EXEC_OPTS(&preview.encoder.children),
	{VFM_OPT_STR, 'o', "output", "RUN", "directory of checkpoints and metrics; created if missing", &out_dir},
	{VFM_OPT_INT, 0, "steps", "N", "same as --set train.steps=N", &steps, 0, HUGE_VAL},
	{VFM_OPT_STR, 0, "resume", "auto|no|CKPT", "resume from the newest complete checkpoint in RUN (auto)", &resume},
	{VFM_OPT_STR, 0, "init", "PATH",
		"start at step 0 with the weights of a checkpoint, a run, or files of another program", &init},
	{VFM_OPT_STR, 0, "low-noise", "PATH",
		"also train a second network, for t below experts.boundary, that begins with these weights (Wan 2.2)",
		&low_noise},
	{VFM_OPT_WORD, 0, "init-part", "model|ema", "which weights --init takes (model)", &init_part},
	{VFM_OPT_STR, 0, "init-lora", "FILE", "train the adapters of a LoRA file for the model of --init further",
		&init_lora},
	{VFM_OPT_STR, 0, "low-noise-lora", "FILE", "the same for the model of --low-noise", &low_noise_lora},
	{VFM_OPT_FLAG, 0, "skip-missing", NULL, "with --init-lora: leave out adapters of layers that the model lacks",
		&skip_missing},
	{VFM_OPT_STR, 0, "allow-change", "LIST",
		"what may differ from the checkpoint: model, diffusion, schedule, plan, encoders, captions",
		&allow_change},
	{VFM_OPT_LIST, 0, "track", "CMD",
		"send the run to other services: start CMD RUN (share/track); may be repeated", &track},
	VFM_SHARD_CACHE_OPTS(&cache),
	VFM_CONTEXT_OPTS(&rank_opts),
	{VFM_OPT_FLAG, 0, "print-config", NULL, "print the resolved configuration and exit", &print_config},
	{VFM_OPT_FLAG, 0, "print-mesh", NULL, "print the mesh coordinates of each rank and exit", &print_mesh},
	{VFM_OPT_FLAG, 0, "dry-run", NULL, "predict memory and time of the run on -n GPUs of --machine, and exit",
		&dry_run},
	{VFM_OPT_STR, 0, "machine", "NAME|FILE", "with --dry-run: the machine (h100-dgx; vfm-machine(5))",
		&dry.machine},
	{VFM_OPT_SIZE, 0, "context", "N", "with --dry-run, without --data: tokens of a pack, one sample (8192)",
		&dry.context, 1, 1 << 24},
	{VFM_OPT_INT, 0, "packs", "N", "with --dry-run, without --data: packs a step (8 for each dp rank)", &dry.packs,
		1, DRY_RUN_PACKS},
	{VFM_OPT_FLAG, 0, "levers", NULL,
		"with --dry-run: print what each setting that saves memory saves and costs, alone and together",
		&dry.levers},
	VFM_UNEVEN_OPTS("--dry-run", &dry.uneven),
	{VFM_OPT_NUM, 0, "mtbf-hours", "H", "with --dry-run: hours between failures of one GPU", &dry.mtbf_h,
		VFM_ABOVE_0, 1e9},
	{VFM_OPT_NUM, 0, "save-s", "S", "with --mtbf-hours: seconds that a checkpoint costs (10)", &dry.save_s, 0, 1e6},
	{VFM_OPT_NUM, 0, "restart-s", "S", "with --mtbf-hours: seconds from a failure to the next step (300)",
		&dry.restart_s, 0, 1e6},
	{VFM_OPT_STR, 0, "html", "FILE", "with --dry-run: write a page with timeline and scaling", &dry.html},
	{VFM_OPT_STR, 0, "trace", "FILE", "with --dry-run: write the launches of the step, for Perfetto or Chrome",
		&dry.trace},
	{VFM_OPT_NAME, 0, "format", VFM_TABLE_FORMATS, "with --dry-run: how to print (text)", &dry.table.format},
	{VFM_OPT_STR, 0, "columns", "all|NAME,...", "with --dry-run: print these columns of the ranks",
		&dry.table.columns},
	{VFM_OPT_STR, 0, "dump-parity", "DIR",
		"write one step on synthetic data to DIR, for comparison with other programs", &parity},
	{VFM_OPT_FLAG, 0, "report", NULL,
		"write a page about the operands, which are runs, to -o FILE or standard output", &report},
	{VFM_OPT_FLAG, 0, "help-config", NULL, "list the keys of the configuration and exit", &help_config},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-train",
	.synopsis = "[OPTION ...] --data PLAN | --phases FILE -o RUN\n[OPTION ...] --print-config\n[OPTION ...] "
		    "--print-mesh\n[OPTION ...] --dry-run [--data PLAN | --context N --packs N]\n[OPTION ...] "
		    "--dump-parity DIR\n--report [-o FILE] RUN ...\n--help-config",
	.example = "vfm-train --model dit-s --data plan.jsonl -o run",
	.summary = "train a video diffusion transformer",
	.opts = opts,
};

/* Applies one --set to the configuration of phase k.  PHASE:KEY=VALUE applies to one phase. */
static int apply_set(struct vfm_config *c, const char *set, int k, struct vfm_err *err)
{
	size_t n = strcspn(set, ":=");
	int at;

	if (set[n] != ':')
		return vfm_config_set(c, set, err);
	at = vfm_phases_find(&phases, set, n);
	if (at < 0)
		return vfm_fail(err, VFM_EUSAGE,
			phases.n ? "--set '%s': there is no phase '%.*s'"
				 : "--set '%s': a phase ('%.*s') needs --phases",
			set, (int)n, set);
	return at == k ? vfm_config_set(c, set + n + 1, err) : 0;
}

/* Takes what --init brings with it; a run or a phase that has begun does not read --init again, nor needs it. */
static int read_initial(struct vfm_config *c, int k, struct vfm_err *err)
{
	char *begun = phases.n && out_dir ? vfm_phased_begun(out_dir, &phases, k)
		: low_noise && out_dir    ? vfm_strfmt("%s/%s", out_dir, vfm_expert_names[VFM_EXPERT_HIGH])
					  : NULL;
	const struct vfm_attach lora = {.path = init_lora, .part = "model", .scale = 1, .skip_missing = skip_missing};
	int rc = vfm_config_initial(c, init, &lora, phases.n || low_noise ? begun : out_dir, err);

	free(begun);
	return rc;
}

/* Of two networks: the boundary is where the range of the first begins, unless it is set.  Together they train all of
 * t. */
static int join_networks(struct vfm_config *c, struct vfm_err *err)
{
	struct vfm_diffusion *d = &c->diffusion;
	struct vfm_config of[VFM_EXPERTS];

	if (d->t_max < 1)
		return vfm_fail(err, VFM_EUSAGE,
			"--low-noise: --init is the low-noise network, for t up to %g: exchange the two", d->t_max);
	if (d->t_min > 0 && c->experts.boundary > 0 && d->t_min != c->experts.boundary)
		return vfm_fail(err, VFM_EUSAGE, "experts.boundary is %g, but --init is for t from %g",
			c->experts.boundary, d->t_min);
	c->experts.boundary = c->experts.boundary > 0 ? c->experts.boundary : d->t_min;
	d->t_min = 0;
	return vfm_experts_configure(of, c, err);
}

/* The configuration of phase k; without phases, k is 0. */
static int read_config(struct vfm_config *c, int k, struct vfm_err *err)
{
	int rc;

	if (init_lora && !init)
		return vfm_fail(err, VFM_EUSAGE, "--init-lora: it needs --init, the base model of the adapters");
	if (skip_missing && !init_lora)
		return vfm_fail(err, VFM_EUSAGE, "--skip-missing: it needs --init-lora");
	vfm_config_defaults(c);
	if (init || out_dir)
		TRY(read_initial(c, k, err));
	if (preset)
		TRY(vfm_model_preset(preset, &c->model, err) < 0 ? vfm_err_context(err, "--model") : 0);
	if (config_path)
		TRY(vfm_config_phase(c, config, &phases, k, err) < 0 ? vfm_err_context(err, "%s", config_path) : 0);
	for (int i = 0; i < sets.n; i++)
		TRY(apply_set(c, sets.v[i], k, err));
	if (steps != VFM_UNSET)
		c->train.steps = steps;
	if (sample_every != VFM_UNSET)
		c->eval.sample_every = sample_every;
	rc = low_noise ? join_networks(c, err) : 0;
	if (rc == 0)
		rc = vfm_config_check(c, err);
	return rc < 0 && phases.n ? vfm_err_context(err, "phase '%s'", phases.v[k].name) : rc;
}

/* Without phases, the configuration; else {"stages":{NAME:configuration, …}}, which -c reads as well. */
static int print_resolved(struct vfm_err *err)
{
	json_t *by_name = json_object(), *o = NULL;
	struct vfm_config c;
	struct vfm_buf b = {0};
	int rc = 0;

	for (int k = 0; k < (phases.n ? phases.n : 1); k++) {
		TRY_OUT(read_config(&c, k, err));
		o = vfm_config_to_json(&c);
		if (phases.n)
			json_object_set_new(by_name, phases.v[k].name, o);
	}
	if (phases.n)
		o = json_pack("{s:O}", "stages", by_name);
	vfm_json_text(&b, o, 2);
	puts(b.data);
	vfm_buf_release(&b);
	json_decref(o);
out:
	json_decref(by_name);
	return rc;
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

/* Refuses a bad plan before a device is opened. */
static int check_train_plan(const struct vfm_context *x, const struct vfm_config *c, struct vfm_err *err)
{
	int64_t last;
	struct vfm_plan *p = vfm_plan_open_checked(plan, c, x->job.world->size, &last, err);

	vfm_plan_close(p);
	return p ? 0 : err->code;
}

static int train(struct vfm_context *x, const struct vfm_config *c, struct vfm_err *err)
{
	int rc = x->job.world->rank == 0 ? vfm_trackers_new(&trackers, &track, err) : 0;
	struct vfm_run_opts o = {.plan = plan,
		.held_out = held_out,
		.preview = preview,
		.cache = cache,
		.dir = out_dir,
		.resume = resume,
		.init = init,
		.init_part = init_part,
		.low_noise = low_noise,
		.init_lora = init_lora,
		.skip_missing = skip_missing,
		.low_noise_lora = low_noise_lora,
		.trackers = trackers,
		.stop = &stop,
		.on_step = print_record};

	TRY(vfm_job_agree(&x->job, rc, err));
	TRY(vfm_change_parse(&o.allow_change, allow_change, err)); /* check_train_options has validated it */
	if (phases.n)
		return vfm_run_phases(x, &(struct vfm_phased){&phases, c, o}, err);
	TRY(vfm_job_agree(&x->job, check_train_plan(x, c, err), err));
	TRY(vfm_context_open(x, c, err));
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

static int check_phases_options(struct vfm_err *err)
{
	if (phases_path && preview.prompts && !strcmp(preview.prompts, "-"))
		return vfm_fail(err, VFM_EUSAGE, "--prompts -: not with --phases, which read the prompts again");
	if (phases_path && (plan || held_out))
		return vfm_fail(err, VFM_EUSAGE, "--phases names the plans: it excludes --data and --held-out");
	if (phases_path && strcmp(resume, "auto") != 0 && strcmp(resume, "no") != 0)
		return vfm_fail(err, VFM_EUSAGE, "--resume CKPT: not with --phases (auto or no)");
	return 0;
}

static int check_network_options(struct vfm_err *err)
{
	if (low_noise && (phases_path || !init || (strcmp(resume, "auto") != 0 && strcmp(resume, "no") != 0)))
		return vfm_fail(
			err, VFM_EUSAGE, "--low-noise: it needs --init, and excludes --phases and --resume CKPT");
	if (low_noise_lora && !low_noise)
		return vfm_fail(err, VFM_EUSAGE, "--low-noise-lora: it needs --low-noise");
	if (low_noise && !init_lora != !low_noise_lora)
		return vfm_fail(err, VFM_EUSAGE, "with --low-noise, --init-lora and --low-noise-lora need each other");
	return 0;
}

static int check_train_options(struct vfm_err *err)
{
	unsigned changes;

	if (!print_mesh && (!(plan || phases_path) || !out_dir))
		return vfm_fail(err, VFM_EUSAGE, "%s is missing (see vfm-train -h)",
			plan || phases_path ? "-o RUN" : "--data PLAN");
	TRY(check_phases_options(err));
	TRY(check_network_options(err));
	if (sample_fps && vfm_prompt_rate(sample_fps, &preview.fps_num, &preview.fps_den, err) < 0)
		return vfm_err_context(err, "--fps");
	if (vfm_change_parse(&changes, allow_change, err) < 0)
		return vfm_err_context(err, "--allow-change");
	if (init && strcmp(resume, "auto") != 0 && strcmp(resume, "no") != 0)
		return vfm_fail(err, VFM_EUSAGE, "give either --init or --resume CKPT, not both");
	return vfm_context_check(&rank_opts, err);
}

static int show_meshes(
	const struct vfm_config *c, int n, const struct vfm_launch *l, int64_t ranks, struct vfm_err *err)
{
	for (int k = 0; k < n; k++) {
		if (phases.n && l->rank <= 0)
			printf("phase %s\n", phases.v[k].name);
		TRY(show_mesh(&c[k], l, ranks, err));
	}
	return 0;
}

static int train_rank(struct vfm_context *x, void *asked, struct vfm_err *err)
{
	int n = phases.n ? phases.n : 1, rc = 0;
	struct vfm_config *c = vfm_calloc((size_t)n, sizeof(*c));

	for (int k = 0; k < n && rc == 0; k++)
		rc = read_config(&c[k], k, err);
	rc = vfm_job_agree(&x->job, rc, err);
	if (rc == 0 && print_mesh)
		rc = vfm_job_agree(&x->job, show_meshes(c, n, &x->job.launch, *(int64_t *)asked, err), err);
	else if (rc == 0)
		rc = train(x, c, err);
	free(c);
	return rc;
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

/* Sets the ranks of a dry run: -n, the tasks of srun with their nodes, or as many as the degrees need. */
static int count_dry_ranks(const struct vfm_config *c, struct vfm_err *err)
{
	const struct vfm_parallel *p = &c->parallel;

	if (dry.step.tasks > 1 && rank_opts.ranks != VFM_UNSET)
		return vfm_fail(err, VFM_EUSAGE,
			"-n %lld within a step of %lld tasks, which are the ranks: leave out -n (or start one task)",
			(long long)rank_opts.ranks, (long long)dry.step.tasks);
	if (dry.step.tasks < 2) /* a shell, or a job that is not to be started here */
		dry.step = (struct vfm_step_tasks){0};
	dry.ranks = dry.step.tasks             ? dry.step.tasks
		: rank_opts.ranks != VFM_UNSET ? rank_opts.ranks
					       : p->tp * p->cp * p->pp * (p->dp ? p->dp : 1);
	if (dry.ranks > VFM_RANKS_MAX)
		return vfm_fail(err, VFM_EUSAGE, "the job has %lld ranks, at most %d are allowed", (long long)dry.ranks,
			VFM_RANKS_MAX);
	return 0;
}

/* An option, and whether the command line has it. */
struct given_option {
	const char *name;
	bool given;
};

static int refuse_given(const struct given_option *o, size_t n, const char *why, struct vfm_err *err)
{
	for (size_t i = 0; i < n; i++)
		if (o[i].given)
			return vfm_fail(err, VFM_EUSAGE, "%s: %s", o[i].name, why);
	return 0;
}

/* Refuses two things to do. */
static int check_actions(struct vfm_err *err)
{
	const struct given_option v[] = {{"--help-config", help_config}, {"--report", report},
		{"--print-config", print_config}, {"--dry-run", dry_run}, {"--dump-parity", parity},
		{"--print-mesh", print_mesh}};
	const char *first = NULL;

	for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++) {
		if (first && v[i].given)
			return vfm_fail(err, VFM_EUSAGE, "give either %s or %s, not both", first, v[i].name);
		first = v[i].given ? v[i].name : first;
	}
	return 0;
}

/* Refuses options of a run that a dry run would not use.  Accepts -o, so that the command of a run predicts it. */
static int check_unused_options(struct vfm_err *err)
{
	const struct vfm_encoder_opts *e = &preview.encoder;
	const struct given_option run[] = {{"--prompts", preview.prompts}, {"--expert", preview.expert},
		{"--vae", e->vae}, {"--text-encoder", e->text_encoder},
		{"--exec, --text-exec", e->exec || e->text_exec}, {"--text2-exec", e->text2_exec},
		{"--image-encoder, --image-exec", vfm_encoder_image_option(e)}, {"--held-out", held_out},
		{"--resume", resume != resume_default}, {"--init-part", init_part != part_default},
		{"--allow-change", *allow_change}, {"--track", track.n}, {"--remote", cache.url},
		{"--cache", cache.dir}, {"--cache-gib", cache.gib != 0}, {"--fetch", cache.command},
		{"--threads", rank_opts.threads != VFM_UNSET}};

	return refuse_given(run, sizeof(run) / sizeof(run[0]), "not with --dry-run", err);
}

/* Refuses options of a dry run without --dry-run. */
static int check_dry_options(struct vfm_err *err)
{
	const struct given_option of_dry[] = {{"--machine", dry.machine}, {"--context", dry.context != VFM_UNSET},
		{"--packs", dry.packs != VFM_UNSET}, {"--mtbf-hours", !isnan(dry.mtbf_h)},
		{"--save-s", !isnan(dry.save_s)}, {"--restart-s", !isnan(dry.restart_s)}, {"--html", dry.html},
		{"--trace", dry.trace}, {"--levers", dry.levers}, {"--format", (int)dry.table.format >= 0},
		{"--columns", dry.table.columns},
		{"--expert-skew, --slow-rank, --straggler-cv", vfm_uneven_given(&dry.uneven)}};

	return refuse_given(of_dry, sizeof(of_dry) / sizeof(of_dry[0]), "only with --dry-run", err);
}

/* Under srun the first task predicts for all. */
static int predict_run(struct vfm_err *err)
{
	struct vfm_task task;
	struct vfm_config c;

	if (phases_path)
		return vfm_fail(err, VFM_EUSAGE, "--dry-run: not with --phases; name the plan of a phase with --data");
	TRY(check_unused_options(err));
	TRY(check_network_options(err));
	if (strcmp(rank_opts.device, "cpu") != 0 && strcmp(rank_opts.device, "cuda") != 0)
		return vfm_fail(err, VFM_EUSAGE, "--device: expected cpu or cuda, got '%s'", rank_opts.device);
	TRY(vfm_task_read(&task, err));
	TRY(vfm_step_tasks_read(&dry.step, err));
	if (task.number > 0)
		return 0;
	TRY(vfm_context_check(&rank_opts, err));
	TRY(read_config(&c, 0, err));
	if (!low_noise)
		TRY(vfm_experts_refuse(&c, err));
	dry.plan = plan;
	dry.device = rank_opts.device == vfm_device_default ? NULL : rank_opts.device;
	dry.machine = dry.machine ? dry.machine : "h100-dgx";
	TRY(count_dry_ranks(&c, err));
	TRY(check_dry_run(&dry, &c.parallel, err));
	return print_dry_run(&c, &dry, err);
}

/* ---- --report ---- */

static int print_page(const struct vfm_buf *b, struct vfm_err *err)
{
	if (fwrite(b->data, 1, b->len, stdout) == b->len && !fflush(stdout))
		return 0;
	return vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write stdout");
}

/* Writes the page about runs [n].  path NULL: standard output. */
static int write_run_report(char *const *runs, int n, const char *path, struct vfm_err *err)
{
	char *dir = path ? vfm_dir_of(path) : vfm_strdup(".");
	struct vfm_buf page = {0};
	int rc;

	if (n < 1)
		rc = vfm_fail(err, VFM_EUSAGE, "--report: RUN is missing (see vfm-train -h)");
	else
		rc = vfm_run_report(&page, &(struct vfm_run_report_opts){.runs = runs, .n = n, .page_dir = dir}, err);
	if (rc == 0)
		rc = path ? vfm_write_file(path, page.data, page.len, err) : print_page(&page, err);
	vfm_buf_release(&page);
	free(dir);
	return rc;
}

/* Reads the files of the command line, once for all ranks and phases. */
static int read_files(struct vfm_err *err)
{
	if (phases_path)
		TRY(vfm_phases_load(&phases, phases_path, err));
	if (!config_path)
		return 0;
	config = vfm_config_load(config_path, err);
	return config ? 0 : err->code;
}

int main(int argc, char **argv)
{
	struct vfm_err err = {0};
	struct vfm_config c;
	int rc, n;

	vfm_cmd_init(argv[0]);
	vfm_version_more = vfm_device_features;
	rc = vfm_opt_parse(&cmd, argc, argv, &n, &err);
	if (rc == 0)
		rc = check_actions(&err);
	if (rc == 0 && n > 0 && !report)
		rc = vfm_fail(&err, VFM_EUSAGE, "unexpected operand '%s'", argv[1]);
	if (rc != 0)
		return vfm_cmd_exit(vfm_job_say_once(rc, &err), &err);
	if (help_config) {
		struct vfm_buf b = {0};

		vfm_config_describe(&b);
		fputs(b.data, stdout);
		vfm_buf_release(&b);
	} else if (report) {
		rc = write_run_report(argv + 1, n, out_dir, &err);
	} else if ((rc = read_files(&err)) < 0) {
		vfm_job_say_once(rc, &err);
	} else if (print_config) {
		rc = print_resolved(&err);
	} else if (!dry_run && (rc = check_dry_options(&err)) < 0) {
		vfm_job_say_once(rc, &err);
	} else if (dry_run) {
		rc = vfm_job_say_once(predict_run(&err), &err);
	} else if (parity) {
		rc = phases_path || init_lora || low_noise ? vfm_fail(&err, VFM_EUSAGE, "--dump-parity: not with %s",
								     phases_path         ? "--phases"
									     : low_noise ? "--low-noise"
											 : "--init-lora")
							   : read_config(&c, 0, &err);
		if (rc == 0)
			rc = dump_parity(&c, &err);
	} else {
		rc = run_ranks(&err);
	}
	json_decref(config);
	vfm_strlist_release(&sets);
	vfm_phases_release(&phases);
	rc = vfm_cmd_exit(rc, &err);
	vfm_trackers_close(trackers, &stop); /* after the message, since this may wait */
	vfm_strlist_release(&track);
	return rc;
}
