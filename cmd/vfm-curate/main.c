/* vfm-curate - raw video and images -> clips, scores, latents and shards; JSON Lines between the stages. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/opt.h"
#include "curate.h"

/* In the order of a pipeline; `help` stands as it is in the -h text. */
static const struct curate_stage {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} stages[] = {
	{"probe", curate_probe, "  probe    files -> records: size, rate, frames, rotation"},
	{"split", curate_split, "  split    a record a clip: scene cuts, fades, or a stride"},
	{"clip", curate_clip, "  clip     cut each clip out to its own file"},
	{"score", curate_score, "  score    motion, luma, sharpness, black and more"},
	{"filter", curate_filter, "  filter   drop records outside of limits"},
	{"encode", curate_encode, "  encode   clips and captions -> latents and text embeddings"},
	{"shard", curate_shard, "  shard    latents and texts -> WebDataset tars with an index"},
	{"verify", curate_verify, "  verify   check shards against their indexes and checksums"},
	{"sheet", curate_sheet, "  sheet    a contact sheet PNG of clips, for a person to look at"},
	{"stats", curate_stats, "  stats    histograms of the numbers in records"},
	{"synth", curate_synth, "  synth    make small captioned videos of moving shapes"},
};
#define N_STAGES (sizeof(stages) / sizeof(stages[0]))

static int main_help(int argc, char **argv)
{
	struct vfm_buf list = {0};
	struct vfm_opt opts[2] = {{VFM_OPT_GROUP, 0, NULL, NULL, NULL, NULL}};
	struct vfm_cmd cmd = {
		.name = "vfm-curate",
		.synopsis = "STAGE [OPTION ...] [FILE ...]\nSTAGE -h",
		.summary = "curate video: from raw files to clips, scores, latents and shards",
		.opts = opts,
	};
	struct vfm_err err = {0};
	int n = 0, rc;

	vfm_buf_adds(&list, "Stages:");
	for (size_t i = 0; i < N_STAGES; i++)
		vfm_buf_addf(&list, "\n%s", stages[i].help);
	opts[0].help = list.data;
	rc = vfm_opt_parse(&cmd, argc, argv, &n, &err);
	vfm_buf_release(&list);
	if (rc == 0)
		rc = vfm_fail(&err, VFM_EUSAGE, "a stage is missing (vfm-curate -h lists them)");
	return vfm_cmd_exit(rc == VFM_OPT_DONE ? 0 : rc, &err);
}

int main(int argc, char **argv)
{
	struct vfm_err err = {0};

	vfm_cmd_init(argv[0]);
	if (argc < 2 || argv[1][0] == '-')
		return main_help(argc, argv);
	for (size_t i = 0; i < N_STAGES; i++) {
		if (strcmp(argv[1], stages[i].name))
			continue;
		vfm_log_init(vfm_strfmt("vfm-curate %s", argv[1])); /* kept for the life of the process */
		return stages[i].run(argc - 1, argv + 1);
	}
	return vfm_cmd_exit(vfm_fail(&err, VFM_EUSAGE, "no stage '%s' (vfm-curate -h lists them)", argv[1]), &err);
}
