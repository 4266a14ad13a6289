/* vfm-pack - shard indexes -> a sequence-packing plan. */
#include "pack_cmd.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "data/plan/plan.h"

static const struct pack_opts defaults = {.context = 8192,
	.batch = 1,
	.algo = "mbs",
	.balance = "tokens",
	.format = "jsonl",
	.last = "fill",
	.long_ = "error",
	.ragged = "error",
	.patch = "1x2x2"};
static struct pack_opts o; /* of the command line, or of the phase that is read */

static const struct vfm_opt opts[] = {
	{VFM_OPT_SIZE, 'c', "context", "TOKENS", "most tokens in a pack, or in a part with --cp (8192)", &o.context},
	{VFM_OPT_INT, 0, "cp", "N", "packs of 1, 2, 4, ... N parts, each for a rank of context parallelism", &o.cp},
	{VFM_OPT_LIST, 0, "blend", "NAME=WEIGHT:DIR",
		"a set and its share of the tokens, W or W@STEP,W@STEP,..., or Fx: F passes; may be repeated",
		&o.blend},
	{VFM_OPT_LIST, 0, "max-passes", "NAME=F", "at most F passes over a set of --blend; may be repeated",
		&o.max_passes},
	{VFM_OPT_LIST, 0, "subset", "NAME=A..B", "of this set only these samples: numbers or percentages, without B",
		&o.subset},
	{VFM_OPT_INT, 'b', "batch", "PACKS", "packs, or parts, in a global step (1)", &o.batch},
	{VFM_OPT_NUM, 0, "epochs", "F", "passes over the samples (1)", &o.epochs},
	{VFM_OPT_INT, 0, "steps", "N", "number of steps, instead of --epochs", &o.steps},
	{VFM_OPT_STR, 0, "algo", "NAME", "mbs, ffd, lpfhp, or none: one sample a pack (mbs)", &o.algo},
	{VFM_OPT_INT, 0, "seed", "N", "seed of all shuffling (0)", &o.seed},
	{VFM_OPT_STR, 0, "patch", "TxHxW", "patch size in latent pixels (1x2x2)", &o.patch},
	{VFM_OPT_STR, 0, "balance", "WHAT", "tokens, or cost: steps of packs of similar cost (tokens)", &o.balance},
	{VFM_OPT_STR, 0, "cost", "FILE", "coefficients of the cost of a pack", &o.cost},
	{VFM_OPT_STR, 0, "long", "WHAT", "samples longer than the context: error or drop (error)", &o.long_},
	{VFM_OPT_STR, 0, "ragged", "WHAT", "samples that the patch does not divide: error or drop (error)", &o.ragged},
	{VFM_OPT_STR, 0, "split", "NAME", "the split of a metadataset (train)", &o.split},
	{VFM_OPT_STR, 0, "last", "WHAT", "an incomplete last step: fill it from another pass, or drop it (fill)",
		&o.last},
	{VFM_OPT_NUM, 0, "held-out", "F", "leave out this fraction of the samples, by the hash of their source",
		&o.held_out},
	{VFM_OPT_STR, 0, "held-out-plan", "FILE", "write the plan of what --held-out leaves out", &o.held_out_plan},
	{VFM_OPT_INT, 0, "window", "N", "samples that are packed together (262144)", &o.window},
	{VFM_OPT_FLAG, 0, "force", NULL, "mix sets of different tokenizers or text encoders", &o.force},
	{VFM_OPT_STR, 0, "phase", "NAME", "begin a training phase: the options and folders up to the next are its own",
		&o.phase},
	{VFM_OPT_STR, 'o', "out", "DIR", "with --phase: write DIR/NAME.jsonl of each phase, and DIR/stages.json",
		&o.out},
	{VFM_OPT_STR, 0, "format", "NAME", "jsonl or bin (jsonl)", &o.format},
	{VFM_OPT_STR, 0, "check", "FILE", "read and verify every record of a plan; write nothing", &o.check},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-pack",
	.synopsis = "[OPTION ...] DIR ...\n[OPTION ...] --blend NAME=WEIGHT:DIR ...\n-o DIR [OPTION ...] --phase NAME "
		    "[OPTION ...] [DIR ...] [--phase NAME ...]\n--check FILE\n"
		    "show [-l] [-s N] [-o FORMAT] PLAN\nstats [-o FORMAT] PLAN",
	.summary = "pack the samples of shard indexes into sequences",
	.opts = opts,
};

int pack_parse(struct pack_opts *to, int n, char **words, int *n_operands, struct vfm_err *err)
{
	int rc;

	o = defaults;
	rc = vfm_opt_parse(&cmd, n, words, n_operands, err);
	*to = o;
	return rc;
}

static int check_plan_file(const char *path, struct vfm_err *err)
{
	struct vfm_plan *m = vfm_plan_open(path, err);
	struct vfm_plan_step step = {0};
	int64_t tokens = 0, steps;
	char hex[VFM_SHA256_HEX];
	int rc = 0;

	if (!m)
		return err->code;
	steps = vfm_plan_header(m)->steps;
	for (int64_t s = 0; rc >= 0 && s < steps; s++) {
		rc = vfm_plan_step(m, s, &step, err);
		tokens += rc >= 0 ? step.tokens : 0;
	}
	if (rc >= 0)
		rc = vfm_plan_sha256(m, hex, NULL, NULL, err);
	if (rc >= 0)
		vfm_info("'%s': %lld steps, %lld tokens, sha256 %s, all well", path, (long long)steps,
			(long long)tokens, hex);
	vfm_plan_step_release(&step);
	vfm_plan_close(m);
	return rc;
}

static int pack(const struct pack_opts *opt, int n, char **dirs, struct vfm_err *err)
{
	const struct pack_out out = {.f = stdout, .held_out = opt->held_out_plan};
	int64_t rc;

	if (opt->out)
		return vfm_fail(err, VFM_EUSAGE, "-o: it needs --phase; one plan goes to standard output");
	rc = pack_make(opt, n, dirs, &out, err);
	return rc < 0 ? (int)rc : 0;
}

/* A verb in the place of the first operand; a folder of that name is ./show. */
static const struct vfm_verb *verb_of(int argc, char **argv)
{
	static const struct vfm_verb verbs[] = {
		{"show", "the packs of a step", pack_show},
		{"stats", "the mix, fill and balance of a plan", pack_stats},
	};

	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (argc > 1 && !strcmp(argv[1], verbs[i].name))
			return &verbs[i];
	return NULL;
}

int main(int argc, char **argv)
{
	const struct vfm_verb *verb = verb_of(argc, argv);
	struct vfm_err err = {0};
	struct pack_opts opt = {0};
	int n = 0, rc;

	vfm_cmd_init(argv[0]);
	if (!verb && vfm_opt_rename(argc, argv, "stage", "phase"))
		vfm_warn("--stage is now --phase");
	if (verb) {
		rc = verb->run(argc - 1, argv + 1, &err);
	} else if (pack_has_phases(argc, argv)) {
		rc = pack_phases(argc, argv, &err);
	} else {
		rc = pack_parse(&opt, argc, argv, &n, &err);
		if (rc == 0)
			rc = opt.check ? check_plan_file(opt.check, &err) : pack(&opt, n, argv + 1, &err);
	}
	vfm_strlist_release(&opt.blend);
	vfm_strlist_release(&opt.max_passes);
	vfm_strlist_release(&opt.subset);
	return vfm_cmd_exit(rc == VFM_OPT_DONE ? 0 : rc, &err);
}
