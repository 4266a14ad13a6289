/* vfm-curate - raw video and images -> clips, scores, latents and shards; JSON Lines between the stages. */
#include "io/opt.h"
#include "curate.h"

/* In the order of a pipeline. */
const struct vfm_verb curate_stages[] = {
	{"fetch", "URLs -> files: http, https, or a command of yours", curate_fetch},
	{"index", "WebDataset tars -> records: a video or image each, with its caption", curate_index},
	{"probe", "files -> records: size, rate, frames, rotation", curate_probe},
	{"table", "rows of CSV, JSON and Parquet -> records", curate_table},
	{"join", "add columns of a table to the records", curate_join},
	{"split", "a record a clip: scene cuts, fades, or a stride", curate_split},
	{"clip", "cut each clip out to its own file", curate_clip},
	{"score", "motion, luma, sharpness, black and more", curate_score},
	{"filter", "drop records outside of limits", curate_filter},
	{"hash", "perceptual hashes of clips and images, for dedup", curate_hash},
	{"dedup", "drop near-duplicates, keep the best of each group", curate_dedup},
	{"bucket", "the size and number of frames of each record", curate_bucket},
	{"caption", "captions of clips from an outside model", curate_caption},
	{"embed", "vectors of clips and captions from an outside model", curate_embed},
	{"search", "the clips nearest to a text, a clip or a vector", curate_search},
	{"encode", "clips and captions -> latents and text embeddings", curate_encode},
	{"decode", "latents -> videos, to compare them with the clips", curate_decode},
	{"shard", "latents and texts -> WebDataset tars with an index", curate_shard},
	{"verify", "check shards against their indexes and checksums", curate_verify},
	{"provenance", "print the stages, options and models that made a dataset", curate_provenance},
	{"sheet", "a contact sheet PNG of clips, for a person to look at", curate_sheet},
	{"stats", "histograms of the numbers in records", curate_stats},
	{"report", "a page about records: distributions, pictures, duplicates", curate_report},
	{"run", "the stages of a pipeline as one program", curate_run},
	{"synth", "make small captioned videos of moving shapes", curate_synth},
	{0},
};

static const struct vfm_verbs family = {
	.name = "vfm-curate",
	.word = "STAGE",
	.summary = "curate video: from raw files to clips, scores, latents and shards",
	.list = curate_stages,
};

int main(int argc, char **argv)
{
	struct vfm_err err = {0};

	vfm_cmd_init(argv[0]);
	return vfm_cmd_exit(vfm_verbs_run(&family, argc, argv, &err), &err);
}
