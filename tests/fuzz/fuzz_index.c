/* Any bytes as an index.  Checksums would stop the fuzzer early, so they are corrected first; the first byte of
 * the input selects those that are not. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/dataset/index.h"
#include "data/dataset/index_tree.h"
#include "io/hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64], path[80], tar[80];

static void cleanup(void)
{
	unlink(path);
	unlink(tar);
	rmdir(dir);
}

static void setup(void)
{
	FILE *f;

	/* in memory, if possible */
	snprintf(dir, sizeof(dir), "%s/vfm_fuzz_index_XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	if (!mkdtemp(dir))
		abort();
	snprintf(path, sizeof(path), "%s/index.vfmi", dir);
	snprintf(tar, sizeof(tar), "%s/000000.tar", dir);
	f = fopen(tar, "wb");
	if (!f || ftruncate(fileno(f), 4096) != 0)
		abort();
	fclose(f);
	atexit(cleanup);
}

static void put_crc(uint8_t *p, size_t len)
{
	uint32_t crc = vfm_crc32c(0, p, len - 4);

	memcpy(p + len - 4, &crc, 4);
}

/* Appends the hash tree to the end `end` of meta; the memory is large enough. */
static size_t put_tree(uint8_t *b, size_t end, uint8_t version)
{
	uint64_t bytes = (end + 4095) / 4096 * 4096;
	struct vfm_tree_shape s = vfm_tree_shape_of(bytes);

	memset(b + end, 0, s.end - end);
	b[8] = version;
	memcpy(b + 56, &s.end, 8);
	memcpy(b + 96, &bytes, 8);
	put_crc(b, 128);
	for (int k = 0; k < s.top; k++)
		for (uint64_t n = 0; n < s.blocks[k]; n++)
			vfm_sha256_raw(b + s.offset[k] + n * 4096, 4096, b + s.offset[k + 1] + n * 32);
	return s.end;
}

/* Makes a file whose sections agree with its length.  `how`: 1: the header; 2, 4, 8: checksums of records, shards and
 * texts; 16: two shards; 32: two texts; 128: the input holds the names, instead of valid ones.  The index is a join if the
 * last byte of the input ends in two set bits; bit 2 of this byte selects version 5, else it is 4 for a join, or 3. */
static size_t mend(uint8_t *b, size_t size, uint8_t how)
{
	static const char plain[] = "{\"texts\":[\"\",\"a\"],\"makers\":{}}",
			  join[] = "{\"texts\":[\"\",\"a\"],\"makers\":{},\"parts\":[{\"dir\":\".\",\"index_sha256\":"
				   "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}]}";
	bool is_join = (b[size] & 3) == 3;
	const char *meta = is_join ? join : plain;
	uint64_t shards = how & 16 ? 2 : 1, texts = how & 32 ? 2 : 1, names, records, at[3], t[3];
	uint32_t words[2];

	names = how & 128 ? size % 100 : strlen(meta);
	if (!(how & 1) || size < 128 + shards * 64 + texts * 32 + names)
		return size;
	records = (size - 128 - shards * 64 - texts * 32 - names) / 128;
	memcpy(b, "VFMINDEX\3\0\0\0\200\0\0\0\200\0\0\0\100\0\0\0", 24);
	memcpy(b + 24, &records, 8);
	memcpy(b + 32, &shards, 4);
	memcpy(b + 36, &(uint32_t){32}, 4);
	at[0] = 128;
	at[1] = 128 + records * 128;
	at[2] = at[1] + shards * 64 + texts * 32 + names;
	memcpy(b + 40, at, 24);
	t[0] = texts;
	t[1] = at[1] + shards * 64;
	t[2] = at[2] - names;
	for (uint64_t i = 0; (how & 2) && i < records; i++)
		put_crc(b + 128 + i * 128, 128);
	for (uint64_t i = 0; (how & 4) && i < shards; i++)
		put_crc(b + at[1] + i * 64, 64);
	for (uint64_t i = 0; (how & 8) && i < texts; i++)
		put_crc(b + t[1] + i * 32, 32);
	if (!(how & 128))
		memcpy(b + t[2], meta, names);
	words[0] = (uint32_t)names;
	words[1] = vfm_crc32c(0, b + t[2], names);
	memcpy(b + 64, t, 24);
	memcpy(b + 88, words, 8);
	return put_tree(b, at[2], b[size] & 4 ? 5 : is_join ? 4 : 3);
}

static void walk_extras(struct vfm_index *ix, const struct vfm_index_record *r, float buf[1 << 16])
{
	struct vfm_index_text t;
	struct vfm_err err;

	for (int e = 0; e < VFM_EXTRAS; e++) {
		if (vfm_index_extra(ix, r, (enum vfm_extra)e, &t, &err) < 0 ||
			vfm_extra_count(r, (enum vfm_extra)e, &t) > 1 << 16)
			continue;
		if (e == VFM_EXTRA_COND)
			vfm_index_read_cond(ix, r, &t, buf, NULL, &err);
		else
			vfm_index_read_rows_f32(ix, r, (enum vfm_extra)e, &t, buf, NULL, &err);
	}
}

static void walk(struct vfm_index *ix)
{
	struct vfm_index_shard sh;
	struct vfm_index_text t;
	struct vfm_index_record r;
	struct vfm_err err;
	static float buf[1 << 16];

	for (uint32_t s = 0; s < vfm_index_info(ix)->n_shards && s < 8; s++) {
		if (vfm_index_shard(ix, s, &sh, &err) < 0)
			continue;
		for (uint32_t i = 0; i < sh.count && i < 16; i++) {
			if (vfm_index_get(ix, s, i, &r, &err) < 0)
				continue;
			if (vfm_record_latent_count(&r) <= 1 << 16)
				vfm_index_read_latent(ix, &r, buf, NULL, &err);
			for (uint32_t k = 0; k < r.n_texts; k++) {
				if (vfm_index_text(ix, &r, k, &t, &err) < 0)
					continue;
				if (!memchr(vfm_index_info(ix)->names[t.name], 0, 32))
					abort();
				if ((uint32_t)t.rows * r.text_dim <= 1 << 16)
					vfm_index_read_text_f32(ix, &r, &t, buf, NULL, &err);
			}
			walk_extras(ix, &r, buf);
		}
	}
	for (uint64_t n = 0; n < vfm_index_info(ix)->n_records && n < 16; n++)
		vfm_index_at(ix, n, &r, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_index *ix;
	struct vfm_err err;
	uint8_t *b;
	size_t len;
	int fd;

	if (!path[0])
		setup();
	if (size < 1)
		return 0;
	len = size - 1;
	b = malloc(len + len / 64 + 4 * 4096);
	b[len] = data[size - 1];
	memcpy(b, data + 1, len);
	len = mend(b, len, data[0]);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, b, len) != (ssize_t)len)
		abort();
	close(fd);
	free(b);
	if (vfm_index_open(&ix, dir, &err) == 0) {
		walk(ix);
		vfm_index_close(ix);
	}
	return 0;
}
