/* Any text as a metadataset, and as the split.yaml of a dataset. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "data/metadataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64], meta[96], split[112], set[96];

static void remove_files(void)
{
	vfm_rm_rf(dir, NULL);
}

static void make_folder(void)
{
	snprintf(dir, sizeof(dir), "%s/vfm_fuzz_mds_XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	if (!mkdtemp(dir))
		abort();
	snprintf(meta, sizeof(meta), "%s/.nv-meta", dir);
	snprintf(split, sizeof(split), "%s/split.yaml", meta);
	snprintf(set, sizeof(set), "%s/m.yaml", dir);
	if (mkdir(meta, 0700) != 0)
		abort();
	atexit(remove_files);
}

static void write_text(const char *path, const uint8_t *data, size_t size)
{
	FILE *f = fopen(path, "wb");

	if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_metadataset m = {0};
	struct vfm_err err;
	int rc;

	if (!dir[0])
		make_folder();
	write_text(split, data, size);
	if (vfm_metadataset_check_split(dir, "train", &err) == 0) /* there is no index */
		abort();
	unlink(split);
	write_text(set, data, size);
	rc = vfm_metadataset_read(&m, set, "train", &err);
	for (size_t i = 0; rc == 0 && i < m.n; i++)
		if (!m.sets[i].dir || m.sets[i].repetitions < 1 || (m.sets[i].weight > 0) != m.weighted)
			abort();
	vfm_metadataset_release(&m);
	return 0;
}
