/* Any bytes as an index.  Checksums would stop the fuzzer early, so they are corrected first; the first byte of
 * the input selects those that are not. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "data/index.h"

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

static void mend(uint8_t *b, size_t size, uint8_t how)
{
	uint64_t records = 0, n = 0, at;
	uint32_t shards = 0;

	if (size < 128)
		return;
	if (how & 1) { /* a header that agrees with the length */
		memcpy(b, "VFMINDEX\1\0\0\0\200\0\0\0\200\0\0\0\100\0\0\0", 24);
		shards = size >= 128 + 64 ? 1 + (how >> 4) % 2 : 0;
		if (size < 128 + 64u * shards)
			shards = 1;
		records = (size - 128 - 64u * shards) / 128;
		n = 128 + records * 128;
		memcpy(b + 24, &records, 8);
		memcpy(b + 32, &shards, 4);
		at = 128;
		memcpy(b + 40, &at, 8);
		memcpy(b + 48, &n, 8);
		at = n + 64u * shards;
		memcpy(b + 56, &at, 8);
		put_crc(b, 128);
	}
	for (uint64_t i = 0; (how & 2) && i < records; i++)
		put_crc(b + 128 + i * 128, 128);
	for (uint32_t i = 0; (how & 4) && i < shards; i++)
		put_crc(b + n + i * 64, 64);
}

static void walk(struct vfm_index *ix)
{
	struct vfm_index_shard sh;
	struct vfm_record r;
	struct vfm_err err;
	static float buf[1 << 16];

	for (uint32_t s = 0; s < vfm_index_n_shards(ix) && s < 8; s++) {
		if (vfm_index_shard(ix, s, &sh, &err) < 0)
			continue;
		for (uint32_t i = 0; i < sh.count && i < 16; i++) {
			if (vfm_index_get(ix, s, i, &r, &err) < 0)
				continue;
			if (vfm_record_latent_count(&r) <= 1 << 16)
				vfm_index_read_latent_f32(ix, &r, buf, &err);
			if (vfm_record_text_count(&r) <= 1 << 16)
				vfm_index_read_text_f32(ix, &r, buf, &err);
		}
	}
	for (uint64_t n = 0; n < vfm_index_n_records(ix) && n < 16; n++)
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
	b = malloc(len + 1);
	memcpy(b, data + 1, len);
	mend(b, len, data[0]);
	if ((data[0] & 1) && len >= 192) {
		uint64_t n;

		memcpy(&n, b + 56, 8); /* cut to what the header says */
		len = n <= len ? (size_t)n : len;
	}
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
