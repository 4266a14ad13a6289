/* Any text as a metadataset, and as the split.yaml of a dataset; as weights over steps, and as a subset. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/dataset/energon_split.h"
#include "data/plan/metadataset.h"
#include "data/plan/mix.h"
#include "io/file.h"
#include "dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RECORDS = 12 };
static char dir[64], meta[96], split[112], set[96];

static void remove_files(void)
{
	vfm_rm_rf(dir, NULL);
}

static void make_folder(void)
{
	const struct dataset_dims dims = {1, 2, 2, 0};
	struct vfm_err err;

	snprintf(dir, sizeof(dir), "%s/vfm_fuzz_mds_XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	if (!mkdtemp(dir))
		abort();
	snprintf(meta, sizeof(meta), "%s/.nv-meta", dir);
	snprintf(split, sizeof(split), "%s/split.yaml", meta);
	snprintf(set, sizeof(set), "%s/m.yaml", dir);
	if (mkdir(meta, 0700) != 0 || dataset_make(dir, &dims, 1, RECORDS, 3, &err) < 0)
		abort();
	atexit(remove_files);
}

static void write_text(const char *path, const uint8_t *data, size_t size)
{
	FILE *f = fopen(path, "wb");

	if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0)
		abort();
}

/* What is selected are records of the index, each once, and not all of them. */
static void check_selection(const struct vfm_selection *s, bool is_part)
{
	int64_t total = 0, end = 0;

	for (size_t i = 0; i < s->n; i++) {
		if (s->v[i].first < end || s->v[i].end <= s->v[i].first || s->v[i].before != total)
			abort();
		end = s->v[i].end;
		total += end - s->v[i].first;
	}
	if (end > RECORDS || total != s->total || (is_part ? total < 1 || total == RECORDS : s->n != 0))
		abort();
}

static void check_texts(const char *text)
{
	struct vfm_mix_weights w = {0};
	struct vfm_subset s;
	struct vfm_err err;

	if (vfm_weights_parse(text, &w, &err) == 0) {
		double mean = -1;

		for (int32_t i = 0; i < w.n; i++)
			if (!(vfm_weights_at(&w, (double)w.v[i].step) >= 0))
				abort();
		vfm_mix_mean(&w, 1, 0, 100, &mean);
		if (!(mean >= 0 && mean < 1.0001))
			abort();
		if (vfm_mix_steady(&w, 1, 1, 2, 0.01) < 1)
			abort();
	}
	vfm_weights_release(&w);
	if (vfm_subset_parse(text, &s, &err) == 0) {
		struct vfm_selection all = {0};

		vfm_selection_add(&all, 0, RECORDS + 1);
		if (vfm_selection_cut(&all, &s, &err) == 0)
			vfm_selection_seal(&all);
		vfm_selection_release(&all);
		if (!(s.low >= 0 && s.low <= s.high && s.high <= 1))
			abort();
	}
}

/* Whether braces may stand for so many names that libFuzzer takes it for a hang. */
static bool has_many_names(const uint8_t *data, size_t size)
{
	int braces = 0, digits = 0, most = 0;

	for (size_t i = 0; i < size; i++) {
		braces += data[i] == '{';
		digits = data[i] >= '0' && data[i] <= '9' ? digits + (digits || data[i] != '0') : 0;
		most = digits > most ? digits : most;
	}
	return braces > 8 || most > 4 || (braces > 2 && most > 1);
}

static void read_split(const uint8_t *data, size_t size)
{
	struct vfm_subset half = VFM_SUBSET_ALL;
	struct vfm_selection selection = {0};
	struct vfm_err err;
	bool is_part;

	half.low = 0.25;
	half.high = 0.75;
	write_text(split, data, size);
	if (vfm_energon_split_read(&selection, &is_part, dir, "train", size % 2 ? &half : NULL, &err) == 0)
		check_selection(&selection, is_part);
	else if (selection.n)
		abort();
	vfm_selection_release(&selection);
	unlink(split);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_metadataset m = {0};
	struct vfm_err err;
	char *text;
	int rc;

	if (!dir[0])
		make_folder();
	if (!has_many_names(data, size))
		read_split(data, size);
	write_text(set, data, size);
	rc = vfm_metadataset_read(&m, set, "train", &err);
	for (size_t i = 0; rc == 0 && i < m.n; i++) {
		if (!m.sets[i].dir || !(m.sets[i].repetitions > 0) || (m.sets[i].weight > 0) != m.weighted)
			abort();
		check_selection(&m.sets[i].selection, m.sets[i].is_part);
	}
	vfm_metadataset_release(&m);
	text = malloc(size + 1);
	memcpy(text, data, size);
	text[size] = 0;
	check_texts(text);
	free(text);
	return 0;
}
