/* The options of vfm-pack. */
#include <math.h>

#include "data/plan/plan.h"
#include "pack_cmd.h"

static const struct pack_opts defaults = {.context = 8192, .batch = 1, .patch = "1x2x2"};
static struct pack_opts o; /* of the command line that is being parsed */

static const struct vfm_opt opts[] = {
	{VFM_OPT_SIZE, 0, "context", "TOKENS", "most tokens in a pack, or in a part with --cp (8192)", &o.context, 1,
		VFM_PLAN_MAX_CONTEXT},
	{VFM_OPT_INT, 0, "cp", "N", "packs of 1, 2, 4, ... N parts, each for a rank of context parallelism", &o.cp},
	{VFM_OPT_LIST, 0, "blend", "NAME=WEIGHT:DIR",
		"a set and its share of the tokens, W or W@STEP,W@STEP,..., or Fx: F passes; may be repeated",
		&o.blend},
	{VFM_OPT_LIST, 0, "max-passes", "NAME=F", "at most F passes over a set of --blend; may be repeated",
		&o.max_passes},
	{VFM_OPT_LIST, 0, "subset", "NAME=A..B", "of this set only these samples: numbers or percentages, without B",
		&o.subset},
	{VFM_OPT_INT, 'b', "batch", "PACKS", "packs, or parts, in a global step (1)", &o.batch, 1, VFM_PLAN_MAX_BATCH},
	{VFM_OPT_NUM, 0, "epochs", "F", "passes over the samples (1)", &o.epochs, 0, 1e6},
	{VFM_OPT_INT, 0, "steps", "N", "number of steps, instead of --epochs", &o.steps, 0, HUGE_VAL},
	{VFM_OPT_NAME, 0, "algo", "mbs|none", "none: one sample a pack (mbs)", &o.one_each},
	{VFM_OPT_INT, 0, "seed", "N", "seed of all shuffling (0)", &o.seed, 0, HUGE_VAL},
	{VFM_OPT_STR, 0, "patch", "TxHxW", "patch size in latent pixels (1x2x2)", &o.patch},
	{VFM_OPT_NAME, 0, "balance", "tokens|cost", "cost: steps of packs of similar cost (tokens)", &o.by_cost},
	{VFM_OPT_STR, 0, "cost", "FILE", "coefficients of the cost of a pack", &o.cost},
	{VFM_OPT_NAME, 0, "long", "error|drop", "samples longer than the context (error)", &o.drop_long},
	{VFM_OPT_NAME, 0, "ragged", "error|drop", "samples that the patch does not divide (error)", &o.drop_ragged},
	{VFM_OPT_STR, 0, "split", "NAME", "the split of a metadataset (train)", &o.split},
	{VFM_OPT_NAME, 0, "last", "fill|drop", "an incomplete last step: fill it from another pass (fill)",
		&o.drop_last},
	{VFM_OPT_NUM, 0, "held-out", "F", "leave out this fraction of the samples, by the hash of their source",
		&o.held_out, 0, VFM_BELOW_1},
	{VFM_OPT_STR, 0, "held-out-plan", "FILE", "write the plan of the samples that --held-out leaves out",
		&o.held_out_plan},
	{VFM_OPT_INT, 0, "window", "N", "samples that are packed together (262144)", &o.window, 0, 1 << 30},
	{VFM_OPT_FLAG, 0, "force", NULL, "mix sets of different tokenizers or text encoders", &o.force},
	{VFM_OPT_STR, 0, "phase", "NAME", "begin a training phase: the options and folders up to the next are its own",
		&o.phase},
	{VFM_OPT_STR, 'o', "output", "DIR", "with --phase: write DIR/NAME.jsonl of each phase, and DIR/stages.json",
		&o.out},
	{VFM_OPT_NAME, 0, "format", "jsonl|bin", "of the plan (jsonl)", &o.bin},
	{VFM_OPT_STR, 0, "check", "FILE", "read and verify every record of a plan; write nothing", &o.check},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-pack",
	.example = "vfm-pack --context 8192 data > plan.jsonl",
	.synopsis = "[OPTION ...] DIR ...\n[OPTION ...] --blend NAME=WEIGHT:DIR ...\n-o DIR [OPTION ...] --phase NAME "
		    "[OPTION ...] [DIR ...] [--phase NAME ...]\n--check FILE\n"
		    "show [--samples] [--step N] [--format FORMAT] PLAN\nstats [--format FORMAT] PLAN",
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

void pack_opts_release(struct pack_opts *opt)
{
	vfm_strlist_release(&opt->blend);
	vfm_strlist_release(&opt->max_passes);
	vfm_strlist_release(&opt->subset);
}
