#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/map.h"
#include "io/file.h"
#include "io/input.h"
#include "io/tar.h"

static char *names[6];

static int setup(void **state)
{
	static const int lengths[] = {1, 100, 101, 200, 256, 3000};

	(void)state;
	for (int i = 0; i < 6; i++) {
		names[i] = calloc(1, (size_t)lengths[i] + 1);
		memset(names[i], 'a' + i, (size_t)lengths[i]);
		if (i == 3)
			names[i][120] = '/'; /* fits ustar's prefix and name */
		if (i == 4)
			names[i][120] = '/'; /* does not */
	}
	return 0;
}

/* An archive of the six names in memory; the caller frees it. */
static char *archive(size_t *len)
{
	char *p = NULL;
	FILE *f = open_memstream(&p, len);
	struct vfm_tar_writer w;
	uint64_t at;

	vfm_tar_writer_init(&w, f, "t.tar");
	for (int i = 0; i < 6; i++) {
		char body[2000];

		memset(body, '0' + i, sizeof(body));
		assert_int_equal(vfm_tar_add(&w, names[i], body, (size_t)i * 400, &at, NULL), 0);
		assert_int_equal(at % 512, 0);
	}
	assert_int_equal(vfm_tar_finish(&w, NULL), 0);
	fclose(f);
	assert_int_equal(w.pos, *len);
	return p;
}

static void round_trip(void **state)
{
	struct vfm_err err = {0};
	struct vfm_tar_member m;
	struct vfm_tar t;
	uint64_t end = 0;
	size_t len;
	char *p = archive(&len);

	(void)state;
	vfm_tar_init(&t, p, len, "t.tar");
	for (int i = 0; i < 6; i++) {
		assert_int_equal(vfm_tar_next(&t, &m, &err), 1);
		assert_string_equal(m.name, names[i]);
		assert_int_equal(m.size, i * 400);
		assert_int_equal(m.type, '0');
		assert_int_equal(m.header_offset, end);
		for (int k = 0; k < i * 400; k++)
			assert_int_equal(p[m.data_offset + (uint64_t)k], '0' + i);
		end = vfm_tar_end_of(&m);
	}
	assert_int_equal(vfm_tar_next(&t, &m, &err), 0);
	assert_int_equal(t.pos, end);
	assert_int_equal(len, end + 1024);
	free(p);
}

static void system_tar(void **state)
{
	static const char *const formats[] = {"ustar", "pax", "gnu", "oldgnu", "v7"};
	char dir[] = "/tmp/vfm_tar_XXXXXX", cmd[1024], file[64];
	struct vfm_err err = {0};
	FILE *out;
	size_t len;
	char *p;

	(void)state;
	if (system("tar --version >/dev/null 2>&1") != 0) {
		print_message("SKIP: no tar(1) to compare with\n");
		skip();
	}
	assert_non_null(mkdtemp(dir));
	/* theirs, read by us */
	for (int i = 0; i < 5; i++) {
		int long_ok = i == 1 || i == 2 || i == 3, n = 0;
		struct vfm_map map;
		struct vfm_tar t;
		struct vfm_tar_member m;

		snprintf(cmd, sizeof(cmd),
			"cd %s && rm -rf in && mkdir in && echo one >in/a.txt && seq 1000 >in/b.txt && ln -s a.txt "
			"in/link && "
			"%s tar --format=%s --sort=name -cf t.tar in",
			dir, long_ok ? "touch in/$(printf %0200d 7).txt &&" : "", formats[i]);
		assert_int_equal(system(cmd), 0);
		snprintf(file, sizeof(file), "%s/t.tar", dir);
		assert_int_equal(vfm_map_open(&map, file, &err), 0);
		vfm_tar_init(&t, map.data, map.size, file);
		while (vfm_tar_next(&t, &m, &err) == 1) {
			n++;
			if (strcmp(m.name, "in/b.txt") == 0)
				assert_int_equal(m.size, 3893);
			if (strcmp(m.name, "in/link") == 0)
				assert_int_equal(m.type, '2');
			if (strlen(m.name) > 200)
				assert_int_equal(strncmp(m.name + 3 + 199, "7.txt", 5), 0);
		}
		assert_string_equal(err.msg, "");
		assert_int_equal(n, 4 + long_ok);
		vfm_map_close(&map);
	}
	/* ours, read by theirs */
	p = archive(&len);
	snprintf(file, sizeof(file), "%s/o.tar", dir);
	out = fopen(file, "wb");
	assert_int_equal(fwrite(p, 1, len, out), len);
	fclose(out);
	free(p);
	snprintf(cmd, sizeof(cmd),
		"test $(tar -tf %s | tail -1 | wc -c) = 3001 && test $(tar -xOf %s %s | wc -c) = 1200", file, file,
		names[3]);
	assert_int_equal(system(cmd), 0);
	vfm_rm_rf(dir, NULL);
}

/* Reads to the end or the first fault; returns the last code. */
static int walk(const void *p, size_t len, struct vfm_err *err)
{
	struct vfm_tar_member m;
	struct vfm_tar t;
	int rc;

	vfm_tar_init(&t, p, len, "t.tar");
	while ((rc = vfm_tar_next(&t, &m, err)) == 1)
		assert_true(m.data_offset <= len && m.size <= len - m.data_offset);
	return rc;
}

static void damage(void **state)
{
	struct vfm_err err;
	size_t len;
	char *p = archive(&len);

	(void)state;
	for (size_t cut = 0; cut < len - 1024; cut += 7)
		assert_int_equal(walk(p, cut, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "t.tar"));
	for (size_t i = 0; i < 512; i++) { /* a header has a checksum over all of its bytes */
		p[i] ^= 0x41;
		if (walk(p, len, &err) >= 0)
			fail_msg("the change of byte %zu of a header was not detected", i);
		p[i] ^= 0x41;
	}
	assert_int_equal(walk(p, len, &err), 0);
	free(p);
}

static void set_checksum(unsigned char *h)
{
	unsigned sum = 0;

	memset(h + 148, ' ', 8);
	for (int i = 0; i < 512; i++)
		sum += h[i];
	sprintf((char *)h + 148, "%06o", sum);
}

static void hostile(void **state)
{
	static const struct {
		const char *size, *pax, *why;
		char type;
	} bad[] = {
		{"77777777777", NULL, "truncated", '0'},
		{"0000000000x", NULL, "a bad size", '0'},
		{"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", NULL, "a bad size", '0'},
		{"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", NULL, "truncated", '0'},
		{"00000000000", NULL, "sparse", 'S'},
		{"00000000031", "25 path=0123456789abcdef", "a bad pax header", 'x'},
		{"00000000005", "99 a=b", "a bad pax header", 'x'},
		{"00000000005", "5 ab\n", "a bad pax header", 'x'},
		{"00000000006", "6 a=b\n", "extended header without", 'x'},
		{"00000000010", "8 path=\n", "a bad pax path", 'x'},
		{"00000000012", "10 size=x\n", "a bad pax size", 'x'},
		{"00000000031", "25 GNU.sparse.major=1.00\n", "sparse", 'x'},
		{"00000000004", "\0\0\0\0", "a bad long name", 'L'},
	};
	unsigned char buf[4 * 512];
	struct vfm_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		memset(buf, 0, sizeof(buf));
		strcpy((char *)buf, "name");
		memcpy(buf + 124, bad[i].size, bad[i].size[0] == '\x80' ? 12 : 11);
		buf[156] = (unsigned char)bad[i].type;
		memcpy(buf + 257, "ustar\00000", 8);
		set_checksum(buf);
		if (bad[i].pax)
			memcpy(buf + 512, bad[i].pax, strlen(bad[i].pax));
		assert_int_equal(walk(buf, sizeof(buf), &err), VFM_EINPUT);
		if (!strstr(err.msg, bad[i].why))
			fail_msg("case %zu: got '%s', expected '%s'", i, err.msg, bad[i].why);
	}
}

static void webdataset_names(void **state)
{
	const char *part;

	(void)state;
	assert_int_equal(vfm_tar_split_name("a.txt", &part), 1);
	assert_string_equal(part, "txt");
	assert_int_equal(vfm_tar_split_name("d.e/key.latent.npy", &part), 7);
	assert_string_equal(part, "latent.npy");
	assert_int_equal(vfm_tar_split_name("key", &part), 0);
	assert_int_equal(vfm_tar_split_name("d.e/key", &part), 0);
	assert_int_equal(vfm_tar_split_name(".hidden", &part), 0);
	assert_int_equal(vfm_tar_split_name("22.0/1.1.mp4", &part), 6);
	assert_string_equal(part, "1.mp4");
	assert_int_equal(vfm_tar_split_name("clip 2.0 (x).txt", &part), 6);
	assert_string_equal(part, "0 (x).txt");
	assert_int_equal(vfm_tar_split_name("a.", &part), 1);
	assert_string_equal(part, "");
	assert_int_equal(vfm_tar_split_name("__key__.txt", &part), 7); /* as webdataset and energon */
	assert_int_equal(vfm_tar_split_name("__a.txt", &part), 3);
	assert_int_equal(vfm_tar_split_name("__a.b__", &part), 0);
	assert_int_equal(vfm_tar_split_name("__note__/a.txt", &part), 0);
	assert_int_equal(vfm_tar_split_name("x/__note__/a.txt", &part), 12);
}

static void writer_keeps_its_word(void **state)
{
	struct vfm_tar_writer w;
	FILE *f = fopen("/dev/full", "w");

	(void)state;
	vfm_tar_writer_init(&w, f, "full.tar");
	assert_int_equal(vfm_tar_begin(&w, "", 1, NULL, NULL), VFM_EINPUT);
	assert_int_equal(vfm_tar_begin(&w, "a", 3, NULL, NULL), 0);
	assert_int_equal(vfm_tar_write(&w, "abcd", 4, NULL), VFM_EINPUT);
	assert_int_equal(vfm_tar_write(&w, "ab", 2, NULL), 0);
	assert_int_equal(vfm_tar_end(&w, NULL), VFM_EINPUT);
	setvbuf(f, NULL, _IONBF, 0);
	assert_int_equal(vfm_tar_add(&w, "b", "abc", 3, NULL, NULL), VFM_EENV);
	fclose(f);
}

/* A file with the archive; the caller closes it and frees the path. */
static int archive_file(char **path, size_t *len)
{
	char *p = archive(len);
	int fd;

	*path = strdup("/tmp/vfm-test-tar.XXXXXX");
	fd = mkstemp(*path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, p, *len), *len);
	free(p);
	return fd;
}

static void file_as_memory(void **state)
{
	struct vfm_tar memory, file;
	struct vfm_tar_member m, n;
	struct vfm_err err = {0};
	char *p, *path;
	size_t len;
	int fd = archive_file(&path, &len);

	(void)state;
	p = archive(&len);
	vfm_tar_init(&memory, p, len, "t.tar");
	vfm_tar_init_fd(&file, fd, len, "t.tar");
	for (int i = 0; i < 6; i++) {
		assert_int_equal(vfm_tar_next(&memory, &m, &err), 1);
		assert_int_equal(vfm_tar_next(&file, &n, &err), 1);
		assert_string_equal(m.name, n.name);
		assert_int_equal(m.header_offset, n.header_offset);
		assert_int_equal(m.data_offset, n.data_offset);
		assert_int_equal(m.size, n.size);
	}
	assert_int_equal(vfm_tar_next(&file, &n, &err), 0);
	file.pos = len + 1; /* no such header */
	assert_int_equal(vfm_tar_next(&file, &n, &err), VFM_EINPUT);
	vfm_tar_init_fd(&file, fd, 2 * len, "t.tar"); /* it has become shorter */
	file.pos = len;
	assert_int_equal(vfm_tar_next(&file, &n, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "cannot read"));
	close(fd);
	unlink(path);
	free(path);
	free(p);
}

static void member_names(void **state)
{
	static const char *const none[] = {"", "a", "a.tar", "@1+2/x", "a@+2/x", "a@1+/x", "a@1+2", "a@1+2/", "a@1-2/x",
		"a@01+2/x", "a@1+02/x", "a@1+2x/y", "a@99999999999999999999+1/x", "a@9223372036854775808+1/x"};
	struct vfm_member_name n;
	char *name;

	(void)state;
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		assert_false(vfm_member_parse(&n, none[i]));
	name = vfm_member_name("d/@x.tar", 512, 0, "k@3+4/y@1+2.mp4");
	assert_string_equal(name, "d/@x.tar@512+0/k@3+4/y@1+2.mp4");
	assert_true(vfm_member_parse(&n, name));
	assert_int_equal(n.tar_len, 8);
	assert_int_equal(n.offset, 512);
	assert_int_equal(n.size, 0);
	assert_string_equal(n.member, "k@3+4/y@1+2.mp4");
	free(name);
	assert_true(vfm_member_parse(&n, "a@b@0+1//absolute"));
	assert_int_equal(n.tar_len, 3);
	assert_string_equal(n.member, "/absolute");
}

/* Opens the member of the archive's name i, with the size `size` in its name. */
static int open_named(
	const char *path, uint64_t offset, int i, uint64_t size, struct vfm_input *in, struct vfm_err *err)
{
	char *name = vfm_member_name(path, offset, size, names[i]);
	int rc = vfm_input_open(in, name, err);

	free(name);
	return rc;
}

static void member_content(void **state)
{
	struct vfm_err err = {0};
	struct vfm_tar_member m;
	struct vfm_input in;
	struct vfm_tar t;
	char *path, byte;
	size_t len;
	int fd = archive_file(&path, &len);

	(void)state;
	vfm_tar_init_fd(&t, fd, len, "t.tar");
	for (int i = 0; i < 6; i++) {
		uint64_t size = (uint64_t)i * 400;

		assert_int_equal(vfm_tar_next(&t, &m, &err), 1);
		assert_int_equal(open_named(path, m.header_offset, i, size, &in, &err), 0);
		assert_int_equal(in.size, size);
		assert_int_equal(in.at, m.data_offset);
		if (size) {
			assert_int_equal(pread(in.fd, &byte, 1, (off_t)(in.at + size - 1)), 1);
			assert_int_equal(byte, '0' + i);
		}
		close(in.fd);
		assert_int_equal(open_named(path, m.header_offset, i, size + 1, &in, &err), VFM_EINPUT);
		assert_int_equal(in.fd, -1);
		assert_int_equal(open_named(path, m.header_offset, (i + 1) % 6, size, &in, &err), VFM_EINPUT);
		assert_non_null(strstr(err.msg, "changed or truncated"));
		assert_int_equal(open_named(path, m.header_offset + 1, i, size, &in, NULL), VFM_EINPUT);
	}
	assert_int_equal(open_named(path, t.pos, 0, 0, &in, &err), VFM_EINPUT);
	assert_int_equal(open_named(path, len + 1, 0, 0, &in, &err), VFM_EINPUT);
	assert_int_equal(vfm_input_open(&in, path, &err), 0); /* a file is an input, too */
	assert_int_equal(in.at, 0);
	assert_int_equal(in.size, len);
	close(in.fd);
	close(fd);
	unlink(path);
	free(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip),
		cmocka_unit_test(system_tar),
		cmocka_unit_test(damage),
		cmocka_unit_test(hostile),
		cmocka_unit_test(webdataset_names),
		cmocka_unit_test(writer_keeps_its_word),
		cmocka_unit_test(file_as_memory),
		cmocka_unit_test(member_names),
		cmocka_unit_test(member_content),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
