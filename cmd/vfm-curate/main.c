/* vfm-curate - raw video and images -> clips, scores, latents and shards; JSON Lines between the stages. */
#include "io/opt.h"
#include "curate.h"

#define STAGE_ROW(name, summary) {#name, summary, curate_##name},
const struct vfm_verb curate_stages[] = {CURATE_STAGE_LIST(STAGE_ROW){0}};

static const struct vfm_verbs family = {
	.name = "vfm-curate",
	.word = "STAGE",
	.summary = "curate video: from raw files to clips, scores, latents and shards",
	.example = "vfm-curate run -c pipeline.json -d run",
	.list = curate_stages,
	.pages = true,
};

int main(int argc, char **argv)
{
	struct vfm_err err = {0};

	vfm_cmd_init(argv[0]);
	return vfm_cmd_exit(vfm_verbs_run(&family, argc, argv, &err), &err);
}
