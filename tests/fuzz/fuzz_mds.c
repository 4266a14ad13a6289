/* A dataset of MosaicML Streaming: index.json and a shard of any bytes.  A sample without fault is a valid record of
 * the index.  The input is index.json up to the first zero, then the shard; its size and number of samples are those
 * that index.json says, as far as it has them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/dataset/index_impl.h"
#include "data/dataset/scan.h"
#include "data/record/sample_key.h"
#include "io/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[] = "/tmp/vfm-fuzz-mds-XXXXXX";

static void remove_dir(void)
{
	vfm_rm_rf(dir, NULL);
}

static void check_mds_sample(const struct vfm_scan_sample *m, uint64_t bytes)
{
	struct vfm_index_shard shard = {.name = "shard.00000.mds", .bytes = bytes, .count = 1};
	struct vfm_err err;

	if (m->fault)
		return;
	if (vfm_record_fault(&m->rec, &shard) || vfm_sample_member_check(m->key, &err) < 0 ||
		(m->rec.latent_bytes == 0 && !(m->rec.flags & VFM_REC_NO_LATENT)) || !(m->rec.flags & VFM_REC_MDS))
		abort();
	for (uint32_t i = 0; i < m->rec.n_texts; i++)
		if (vfm_index_array_fault(&m->texts[i], &m->rec, -1))
			abort();
}

static void scan_with(const char *columns, uint8_t *bytes, size_t size, bool mends)
{
	struct vfm_mds m = {0};
	struct vfm_err err;
	char path[64];

	if (vfm_mds_open(&m, dir, columns, size % 3 > 0, &err) == 0) {
		struct vfm_scan s = {
			.headers_only = size % 2, .for_join = size % 3 == 0, .check_hashes = size % 5 == 0};

		if (mends && size >= 4) {
			m.shards[0].bytes = size;
			memcpy(bytes, &m.shards[0].samples, 4);
		}
		snprintf(path, sizeof(path), "%s/x", dir);
		if (vfm_write_file(path, (char *)bytes, size, &err) < 0)
			abort();
		vfm_scan_mds(&s, &m.shards[0], path, &err);
		for (size_t i = 0; i < s.n; i++)
			check_mds_sample(&s.samples[i], s.bytes);
		vfm_scan_release(&s);
	}
	vfm_mds_release(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *zero = memchr(data, 0, size);
	size_t len = zero ? (size_t)(zero - data) : size, rest = zero ? size - len - 1 : 0;
	uint8_t *shard = malloc(rest + 1);
	static bool has_dir;
	struct vfm_err err;
	char path[64];

	if (!has_dir) {
		if (!mkdtemp(dir))
			abort();
		atexit(remove_dir);
		has_dir = true;
	}
	snprintf(path, sizeof(path), "%s/index.json", dir);
	if (vfm_write_file(path, (const char *)data, len, &err) < 0)
		abort();
	memcpy(shard, data + size - rest, rest);
	scan_with(NULL, shard, rest, false);
	scan_with("latent=a,text=b:bf16,key=c", shard, rest, true);
	scan_with("latent=a:float16:2x?x1,text=b:float32:?x4,image=", shard, rest, true);
	free(shard);
	return 0;
}
