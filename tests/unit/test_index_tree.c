/* The hash tree of index.vfmi: damage is found where it is, when it is read. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "data/dataset/index.h"
#include "data/dataset/index_tree.h"
#include "io/file.h"
#include "io/hash.h"

enum { N = 20000, PER = 500 }; /* 640 blocks of records: two levels of hashes */

static char dir[] = "/tmp/vfm_index_tree_XXXXXX", path[64], work[64];

static int write_index(void **state)
{
	struct vfm_encoder_ids encoder_ids = {0};
	struct vfm_index_writer *w;
	struct vfm_err err;
	char name[16];

	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/good.vfmi", dir);
	snprintf(work, sizeof(work), "%s/work.vfmi", dir);
	assert_int_equal(vfm_index_writer_open(&w, path, &err), 0);
	for (int i = 0; i < N; i++) {
		struct vfm_index_text t = {
			.offset = 1024, .bytes = 128 + 16, .header = 128, .rows = 2, .dtype = VFM_NPY_F16};
		struct vfm_index_record r = {.id = (uint64_t)i + 1,
			.sample_bytes = 4096,
			.latent_offset = 512,
			.latent_bytes = 128 + 48,
			.latent_header = 128,
			.latent_dtype = VFM_NPY_F16,
			.c = 2,
			.t = 3,
			.h = 2,
			.w = 2,
			.n_texts = 1,
			.text_dim = 4};

		snprintf(name, sizeof(name), "%06d.tar", i / PER);
		if (i % PER == 0)
			assert_int_equal(vfm_index_writer_shard(w, name, 8192, &err), 0);
		assert_int_equal(vfm_index_writer_add(w, &r, &t, &(const char *){""}, &err), 0);
	}
	assert_int_equal(vfm_index_writer_commit(w, &encoder_ids, &err), 0);
	return 0;
}

static int remove_index(void **state)
{
	(void)state;
	return vfm_rm_rf(dir, NULL);
}

/* Opens a fresh copy of the index with a byte changed. */
static struct vfm_index *open_copy(void)
{
	struct vfm_index *ix;
	struct vfm_err err;
	char *data;
	size_t len;

	assert_int_equal(vfm_read_file(path, 1 << 24, &data, &len, &err), 0);
	unlink(work);
	assert_int_equal(vfm_write_file(work, data, len, &err), 0);
	free(data);
	if (vfm_index_open(&ix, work, &err) < 0)
		fail_msg("%s", err.msg);
	return ix;
}

static void put(const void *data, size_t len, uint64_t at)
{
	int fd = open(work, O_WRONLY);

	assert_int_equal(pwrite(fd, data, len, (off_t)at), len);
	close(fd);
}

static void flip(uint64_t at)
{
	int fd = open(work, O_RDONLY);
	char c;

	assert_int_equal(pread(fd, &c, 1, (off_t)at), 1);
	close(fd);
	c ^= 0x10;
	put(&c, 1, at);
}

static uint64_t header_u64(size_t at)
{
	uint64_t v;
	int fd = open(path, O_RDONLY);

	assert_int_equal(pread(fd, &v, 8, (off_t)at), 8);
	close(fd);
	return v;
}

static void shapes(void **state)
{
	struct vfm_tree_shape s = vfm_tree_shape_of(4096);

	(void)state;
	assert_int_equal(s.top, 1);
	assert_int_equal(s.end, 8192);
	s = vfm_tree_shape_of(128 * 4096);
	assert_int_equal(s.top, 1);
	s = vfm_tree_shape_of(129 * 4096);
	assert_int_equal(s.top, 2);
	assert_int_equal(s.blocks[1], 2);
	assert_int_equal(s.offset[1], 129 * 4096);
	assert_int_equal(s.offset[2], 131 * 4096);
	assert_int_equal(s.end, 132 * 4096);
	s = vfm_tree_shape_of((uint64_t)1 << 37); /* a billion records */
	assert_int_equal(s.top, 4);
	assert_true(s.end < ((uint64_t)1 << 37) / 1000 * 1008);
	s = vfm_tree_shape_of(INT64_MAX / 4096 * 4096);
	assert_true(s.top < VFM_TREE_LEVELS && s.blocks[s.top] == 1);
}

/* A record that was replaced by another valid one, with the right checksum of its own. */
static void replaced_record(void **state)
{
	struct vfm_index *ix = open_copy();
	struct vfm_index_record r;
	struct vfm_err err;
	char hex[VFM_SHA256_HEX];

	(void)state;
	strcpy(hex, vfm_index_info(ix)->sha256);
	assert_int_equal(vfm_index_check_all(ix, &err), 0);
	assert_int_equal(vfm_index_at(ix, 1000, &r, &err), 0);
	vfm_index_close(ix);
	r.id = 77;
	r.crc = vfm_crc32c(0, &r, offsetof(struct vfm_index_record, crc));
	put(&r, sizeof(r), 128 + 1000 * 128);
	assert_int_equal(vfm_index_open(&ix, work, &err), 0);
	assert_string_equal(hex, vfm_index_info(ix)->sha256); /* the top does not know */
	assert_int_equal(vfm_index_at(ix, 0, &r, &err), 0);
	assert_int_equal(vfm_index_at(ix, N - 1, &r, &err), 0);
	assert_int_equal(vfm_index_at(ix, 1000, &r, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, work));
	assert_non_null(strstr(err.msg, "the 4096 bytes from 126976 on")); /* block 31 */
	assert_int_equal(vfm_index_check_all(ix, &err), VFM_EINPUT);
	assert_int_equal(vfm_index_check(ix, &err), 0);
	vfm_index_close(ix);
}

/* A damaged hash makes the one block under it unreadable; a damaged inner block, those under it. */
static void damaged_tree(void **state)
{
	struct vfm_tree_shape s = vfm_tree_shape_of(header_u64(96));
	struct vfm_index *ix = open_copy();
	struct vfm_index_record r;
	struct vfm_err err;
	int bad = 0;

	(void)state;
	assert_int_equal(s.top, 2);
	vfm_index_close(ix);
	flip(s.offset[1] + 2 * 4096 + 5); /* hashes of blocks 256 to 383 */
	assert_int_equal(vfm_index_open(&ix, work, &err), 0);
	for (uint64_t n = 0; n < N; n++) {
		int rc = vfm_index_at(ix, n, &r, &err);
		uint64_t block = (128 + n * 128) / 4096;

		assert_int_equal(rc, block >= 256 && block < 384 ? VFM_EINPUT : 0);
		bad += rc < 0;
	}
	assert_int_equal(bad, 128 * 32);
	vfm_index_close(ix);
	ix = open_copy();
	vfm_index_close(ix);
	flip(s.offset[2] + 4095); /* padding of the top */
	assert_int_equal(vfm_index_open(&ix, work, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "the top block of the hash tree is damaged"));
}

/* Changes while the file is in use: of what was read, and of what was not. */
static void changes_in_use(void **state)
{
	const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	struct vfm_index *ix = open_copy();
	struct vfm_index_record r;
	struct vfm_err err;

	(void)state;
	assert_int_equal(vfm_index_at(ix, 5000, &r, &err), 0);
	assert_int_equal(utimensat(AT_FDCWD, work, times, 0), 0);
	assert_int_equal(vfm_index_check(ix, &err), 0);
	flip(128 + 128 * 9000 + 3);
	assert_int_equal(vfm_index_check(ix, &err), 0); /* no caller has read it */
	assert_int_equal(vfm_index_at(ix, 9000, &r, &err), VFM_EINPUT);
	flip(128 + 128 * 5000 + 3);
	assert_int_equal(vfm_index_check(ix, &err), VFM_EENV);
	assert_non_null(strstr(err.msg, "changed while it was in use"));
	vfm_index_close(ix);
	ix = open_copy();
	flip(header_u64(56) - 1); /* the top block */
	assert_int_equal(vfm_index_check(ix, &err), VFM_EENV);
	vfm_index_close(ix);
}

/* Texts, shards and all versions before. */
static void every_table(void **state)
{
	struct vfm_index *ix = open_copy();
	struct vfm_index_shard sh;
	struct vfm_index_text t;
	struct vfm_index_record r;
	struct vfm_err err;

	(void)state;
	assert_int_equal(vfm_index_at(ix, N - 1, &r, &err), 0);
	vfm_index_close(ix);
	flip(header_u64(72) + 32 * 10000); /* text 10000 has a wrong checksum, its neighbour a damaged block */
	assert_int_equal(vfm_index_open(&ix, work, &err), 0);
	assert_int_equal(vfm_index_at(ix, 10000, &r, &err), 0);
	assert_int_equal(vfm_index_text(ix, &r, 0, &t, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "wrong checksum"));
	assert_int_equal(vfm_index_at(ix, 10001, &r, &err), 0);
	assert_int_equal(vfm_index_text(ix, &r, 0, &t, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "hash tree"));
	assert_int_equal(vfm_index_at(ix, N - 1, &r, &err), 0);
	assert_int_equal(vfm_index_text(ix, &r, 0, &t, &err), 0);
	vfm_index_close(ix);
	ix = open_copy();
	vfm_index_close(ix);
	flip(header_u64(48) + 64 * 3);
	assert_int_equal(vfm_index_open(&ix, work, &err), 0);
	assert_int_equal(vfm_index_shard(ix, 3, &sh, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "wrong checksum"));
	assert_int_equal(vfm_index_shard(ix, 4, &sh, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "hash tree"));
	vfm_index_close(ix);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(shapes), cmocka_unit_test(replaced_record),
		cmocka_unit_test(damaged_tree), cmocka_unit_test(changes_in_use), cmocka_unit_test(every_table)};

	return cmocka_run_group_tests(tests, write_index, remove_index);
}
