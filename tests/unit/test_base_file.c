/* Files, hashes, threads. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/par.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/host_memory.h"

static struct vfm_err err;
static char dir[] = "/tmp/vfm-file.XXXXXX";

static int setup(void **state)
{
	(void)state;
	return mkdtemp(dir) && chdir(dir) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return chdir("/") || vfm_rm_rf(dir, &err);
}

static int entries(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

static void has(const char *path, const char *want)
{
	char *data;
	size_t len;

	assert_int_equal(vfm_read_file(path, 1 << 20, &data, &len, &err), 0);
	assert_int_equal(len, strlen(want));
	assert_string_equal(data, want);
	free(data);
}

static void atomic(void **state)
{
	struct vfm_atomic a;
	struct stat st;

	(void)state;
	assert_int_equal(mkdir("d", 0777), 0);
	assert_int_equal(vfm_write_file("d/x", "old", 3, &err), 0);
	has("d/x", "old");
	assert_int_equal(chmod("d/x", 0640), 0);
	assert_int_equal(vfm_atomic_open(&a, "d/x", &err), 0);
	fputs("new", a.f);
	fflush(a.f);
	has("d/x", "old");
	assert_int_equal(vfm_atomic_commit(&a, &err), 0);
	vfm_atomic_abort(&a);
	has("d/x", "new");
	assert_int_equal(stat("d/x", &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(vfm_atomic_open(&a, "d/x", &err), 0);
	fputs("never", a.f);
	vfm_atomic_abort(&a);
	vfm_atomic_abort(&a);
	has("d/x", "new");
	assert_int_equal(symlink("x", "d/link"), 0);
	assert_int_equal(vfm_write_file("d/link", "via", 3, &err), 0);
	has("d/x", "via");
	assert_int_equal(lstat("d/link", &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(entries("d"), 2);
	assert_int_equal(vfm_write_file("d", "x", 1, &err), VFM_EENV);
	assert_string_equal(err.msg, "cannot write 'd': Is a directory");
	assert_int_equal(vfm_write_file("none/x", "x", 1, &err), VFM_EENV);
	assert_string_equal(err.msg, "cannot write 'none/x': No such file or directory");
}

/* Creates the temporary file of path in a child, which then exits with or without its lock. */
static pid_t start_writer(const char *path, int *ready)
{
	int pipes[2];
	pid_t pid;
	char c;

	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	if (pid == 0) {
		struct vfm_atomic a;

		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test must not leave it behind */
		if (vfm_atomic_open(&a, path, NULL) == 0 && fputs("half", a.f) >= 0 && fflush(a.f) == 0 &&
			write(pipes[1], "x", 1) == 1)
			pause();
		_exit(1);
	}
	assert_int_equal(read(pipes[0], &c, 1), 1);
	close(pipes[0]);
	*ready = pipes[1];
	return pid;
}

static void leftovers(void **state)
{
	int ready, status;
	struct stat st;
	pid_t pid;

	(void)state;
	assert_int_equal(mkdir("left", 0777), 0);
	pid = start_writer("left/x", &ready);
	assert_int_equal(entries("left"), 1);
	assert_int_equal(vfm_write_file("left/x", "other", 5, &err), 0); /* beside the living writer */
	has("left/x", "other");
	has("left/x" VFM_TEMP_SUFFIX, "half");
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(ready);
	assert_int_equal(entries("left"), 2);
	assert_int_equal(vfm_write_file("left/x", "again", 5, &err), 0);
	has("left/x", "again");
	assert_int_equal(entries("left"), 1);
	/* A link with the name of the temporary file is neither followed nor removed. */
	assert_int_equal(vfm_write_file("left/victim", "mine", 4, &err), 0);
	assert_int_equal(symlink("victim", "left/x" VFM_TEMP_SUFFIX), 0);
	assert_int_equal(vfm_write_file("left/x", "third", 5, &err), 0);
	has("left/x", "third");
	has("left/victim", "mine");
	assert_int_equal(lstat("left/x" VFM_TEMP_SUFFIX, &st), 0);
}

/* In a child. */
static int write_many(int first, int n)
{
	char text[32];

	for (int i = first; i < first + n; i++) {
		int len = snprintf(text, sizeof(text), "content %06d", i);

		if (vfm_write_file("race/x", text, (size_t)len, NULL) < 0)
			return 1;
	}
	return 0;
}

static void concurrent_writers(void **state)
{
	char *data;
	size_t len;

	(void)state;
	assert_int_equal(mkdir("race", 0777), 0);
	for (int p = 0; p < 3; p++)
		if (fork() == 0)
			_exit(write_many(p * 1000, 300));
	for (int p = 0, status; p < 3; p++) {
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	assert_int_equal(entries("race"), 1);
	assert_int_equal(vfm_read_file("race/x", 100, &data, &len, &err), 0);
	assert_int_equal(len, strlen("content 000000"));
	free(data);
}

/* A file in which the closing of another one begins a write of the same path. */
struct follower {
	FILE *first;
	struct vfm_atomic next;
};

static int close_and_follow(void *cookie)
{
	struct follower *f = cookie;

	fclose(f->first);
	return vfm_atomic_open(&f->next, "after/x", NULL);
}

static struct vfm_atomic followed(struct follower *f)
{
	struct vfm_atomic a;

	assert_int_equal(vfm_atomic_open(&a, "after/x", &err), 0);
	f->first = a.f;
	a.f = fopencookie(f, "w", (cookie_io_functions_t){.close = close_and_follow});
	assert_non_null(a.f);
	return a;
}

/* A writer that gives up must not remove the temporary file of the writer after it. */
static void next_writer(void **state)
{
	struct follower f;
	struct vfm_atomic a;

	(void)state;
	assert_int_equal(mkdir("after", 0777), 0);
	a = followed(&f);
	vfm_atomic_abort(&a);
	fputs("second", f.next.f);
	assert_int_equal(vfm_atomic_commit(&f.next, &err), 0);
	has("after/x", "second");
	a = followed(&f);
	assert_int_equal(vfm_atomic_commit(&a, &err), VFM_EENV); /* it has no descriptor to sync */
	fputs("third", f.next.f);
	assert_int_equal(vfm_atomic_commit(&f.next, &err), 0);
	has("after/x", "third");
	assert_int_equal(entries("after"), 1);
}

/* A child that holds the lock until it is killed, or for `ms`. */
static pid_t hold_lock(int ms)
{
	int ready[2];
	pid_t pid;
	char c;

	assert_int_equal(pipe(ready), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int fd = open("locked", O_RDWR | O_CREAT | O_CLOEXEC, 0666);

		if (fd < 0 || !vfm_lock(fd, NULL) || write(ready[1], "x", 1) != 1)
			_exit(1);
		usleep((unsigned)ms * 1000);
		_exit(0);
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &c, 1), 1);
	close(ready[0]);
	return pid;
}

static void locks(void **state)
{
	volatile sig_atomic_t stop = 1;
	pid_t pid = hold_lock(60000);
	int fd = open("locked", O_RDWR | O_CREAT | O_CLOEXEC, 0666), status;
	double start;
	(void)state;

	assert_true(fd >= 0);
	start = vfm_now();
	assert_false(vfm_lock(fd, &stop)); /* a signal ends the wait */
	assert_true(vfm_now() - start < 5);
	kill(pid, SIGKILL);
	assert_true(vfm_lock(fd, NULL)); /* whether or not the killed one has ended */
	waitpid(pid, &status, 0);
	close(fd);

	pid = hold_lock(300);
	fd = open("locked", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	assert_true(vfm_lock(fd, NULL)); /* it waits for the holder */
	waitpid(pid, &status, 0);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(fd);
}

static void long_names(void **state)
{
	char name[300];

	(void)state;
	memset(name, 'n', sizeof(name));
	name[255] = 0; /* NAME_MAX: no room for a suffix */
	assert_int_equal(vfm_write_file(name, "x", 1, &err), 0);
	has(name, "x");
	name[255] = 'n', name[256] = 0;
	assert_int_equal(vfm_write_file(name, "x", 1, &err), VFM_EENV);
}

static void full_disk(void **state)
{
	struct vfm_atomic a;
	struct rlimit was, small;
	char *big = vfm_calloc(1, 1 << 20);

	(void)state;
	/* A device is written directly and never replaced. */
	assert_int_equal(vfm_write_file("/dev/full", "x", 1, &err), VFM_EENV);
	assert_string_equal(err.msg, "cannot write '/dev/full': No space left on device");
	assert_int_equal(vfm_write_file("/dev/full", big, 1 << 20, &err), VFM_EENV);
	assert_string_equal(err.msg, "cannot write '/dev/full': No space left on device");
	assert_int_equal(vfm_write_file("/dev/null", "x", 1, &err), 0);
	assert_int_equal(access("/dev/null", W_OK), 0);

	/* A limit on file sizes simulates a full disk: only the old file remains. */
	assert_int_equal(mkdir("full", 0777), 0);
	assert_int_equal(vfm_write_file("full/x", "old", 3, &err), 0);
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &was);
	small = was;
	small.rlim_cur = 100000;
	setrlimit(RLIMIT_FSIZE, &small);
	assert_int_equal(vfm_write_file("full/x", big, 1 << 20, &err), VFM_EENV);
	assert_string_equal(err.msg, "cannot write 'full/x': File too large");
	assert_int_equal(vfm_atomic_open(&a, "full/x", &err), 0);
	for (int i = 0; i < 1 << 18; i++)
		putc('x', a.f); /* the test ignores its result until the commit */
	assert_int_equal(vfm_atomic_commit(&a, &err), VFM_EENV);
	setrlimit(RLIMIT_FSIZE, &was);
	has("full/x", "old");
	assert_int_equal(entries("full"), 1);
	free(big);
}

static void reading(void **state)
{
	struct vfm_map m;
	char *data, buf[10];
	size_t len;
	int fd;

	(void)state;
	assert_int_equal(vfm_write_file("r", "0123456789", 10, &err), 0);
	assert_int_equal(vfm_read_file("r", 9, &data, &len, &err), VFM_EINPUT);
	assert_string_equal(err.msg, "'r' is too large (more than 9 bytes)");
	assert_null(data);
	assert_int_equal(vfm_read_file("r", 10, &data, &len, &err), 0);
	free(data);
	assert_int_equal(vfm_read_file("absent", 10, &data, &len, &err), VFM_EINPUT);
	assert_int_equal(vfm_map_open(&m, "r", &err), 0);
	assert_int_equal(m.size, 10);
	assert_memory_equal(m.data, "0123456789", 10);
	vfm_map_close(&m);
	vfm_map_close(&m);
	assert_int_equal(vfm_write_file("empty", "", 0, &err), 0);
	assert_int_equal(vfm_map_open(&m, "empty", &err), 0);
	assert_true(!m.data && !m.size);
	vfm_map_close(&m);
	assert_int_equal(vfm_map_open(&m, ".", &err), VFM_EINPUT);
	assert_int_equal(mkfifo("fifo", 0666), 0);
	assert_int_equal(vfm_map_open(&m, "fifo", &err), VFM_EINPUT); /* and does not hang */
	assert_string_equal(err.msg, "'fifo' is not a regular file");
	assert_int_equal(vfm_map_open(&m, "fifo", NULL), VFM_EINPUT);

	fd = open("r", O_RDONLY);
	assert_int_equal(vfm_full_pread(fd, buf, 5, 5, "r", &err), 0);
	assert_memory_equal(buf, "56789", 5);
	assert_int_equal(vfm_full_pread(fd, buf, 6, 5, "r", &err), VFM_EINPUT);
	assert_string_equal(err.msg, "'r' is truncated: it ends at byte 10, 1 more were expected");
	assert_int_equal(vfm_full_pread(fd, buf, 1, UINT64_MAX, "r", &err), VFM_EINPUT);
	close(fd);
}

static void folders(void **state)
{
	(void)state;
	assert_int_equal(vfm_mkdir_p("a//b/c/", &err), 0);
	assert_int_equal(vfm_mkdir_p("a/b/c", &err), 0);
	assert_int_equal(vfm_mkdir_p("/", &err), 0);
	assert_int_equal(vfm_write_file("a/f", "x", 1, &err), 0);
	assert_int_equal(vfm_mkdir_p("a/f/g", &err), VFM_EENV);
	assert_string_equal(err.msg, "cannot make folder 'a/f/g': 'a/f' is not a folder");
	assert_int_equal(mkdir("keep", 0777), 0);
	assert_int_equal(vfm_write_file("keep/f", "x", 1, &err), 0);
	assert_int_equal(symlink("../keep", "a/link"), 0);
	assert_int_equal(vfm_rm_rf("a", &err), 0);
	assert_int_not_equal(access("a", F_OK), 0);
	has("keep/f", "x"); /* links are not followed */
	assert_int_equal(vfm_rm_rf("a", &err), 0);
}

static void digests(void **state)
{
	static const char abc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; /* FIPS 180-4 */
	char hex[VFM_SHA256_HEX];
	struct vfm_sha256 *s = vfm_sha256_new();

	(void)state;
	vfm_sha256_add(s, "a", 1);
	vfm_sha256_add(s, "bc", 2);
	vfm_sha256_end(s, hex);
	assert_string_equal(hex, abc);
	vfm_sha256_of("", 0, hex);
	assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	assert_int_equal(vfm_write_file("abc", "abc", 3, &err), 0);
	assert_int_equal(vfm_sha256_file("abc", NULL, hex, &err), 0);
	assert_string_equal(hex, abc);
	assert_int_equal(vfm_sha256_file("absent", NULL, hex, &err), VFM_EINPUT);
	assert_int_equal(vfm_sha256_file(".", NULL, hex, &err), VFM_EINPUT);
	assert_true(vfm_fnv64("", 0) == 0xcbf29ce484222325u);
	assert_true(vfm_fnv64("foobar", 6) == 0x85944171f73967e8u); /* the FNV authors' vector */
}

/* RFC 4231, test cases 2 and 6 */
static void hmac(void **state)
{
	static const unsigned char jefe[] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24, 0x26,
		0x08, 0x95, 0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64,
		0xec, 0x38, 0x43};
	static const unsigned char large[] = {0x60, 0xe4, 0x31, 0x59, 0x1e, 0xe0, 0xb6, 0x7f, 0x0d, 0x8a, 0x26, 0xaa,
		0xcb, 0xf5, 0xb7, 0x7f, 0x8e, 0x0b, 0xc6, 0x21, 0x37, 0x28, 0xc5, 0x14, 0x05, 0x46, 0x04, 0x0f, 0x0e,
		0xe3, 0x7f, 0x54};
	unsigned char key[131], out[VFM_HMAC_BYTES];

	(void)state;
	vfm_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, out);
	assert_memory_equal(out, jefe, sizeof(out));
	memset(key, 0xaa, sizeof(key));
	vfm_hmac_sha256(key, sizeof(key), "Test Using Larger Than Block-Size Key - Hash Key First", 54, out);
	assert_memory_equal(out, large, sizeof(out));
	assert_true(vfm_equal_secrets(out, large, sizeof(out)));
	out[31] ^= 1;
	assert_false(vfm_equal_secrets(out, large, sizeof(out)));
}

static void crc(void **state)
{
	static unsigned char buf[1 << 16];
	uint32_t (*const fn[2])(uint32_t, const void *, size_t) = {vfm_crc32c, vfm_crc32c_table};

	(void)state;
	for (size_t i = 0; i < sizeof(buf); i++)
		buf[i] = (unsigned char)(i * 31 + (i >> 5));
	for (int f = 0; f < 2; f++) {
		unsigned char iscsi[32]; /* RFC 3720 B.4 */

		assert_true(fn[f](0, "123456789", 9) == 0xe3069283u);
		memset(iscsi, 0, 32);
		assert_true(fn[f](0, iscsi, 32) == 0x8a9136aau);
		memset(iscsi, 0xff, 32);
		assert_true(fn[f](0, iscsi, 32) == 0x62a8ab43u);
		assert_true(fn[f](0, "", 0) == 0);
	}
	for (size_t n = 0; n < sizeof(buf) - 8; n += n < 300 ? 1 : 997) { /* long ones are three streams */
		uint32_t whole = vfm_crc32c(0, buf + n % 8, n);

		assert_true(whole == vfm_crc32c_table(0, buf + n % 8, n));
		assert_true(whole == vfm_crc32c(vfm_crc32c(0, buf + n % 8, n / 3), buf + n % 8 + n / 3, n - n / 3));
	}
}

struct cover {
	int64_t n, grain;
	unsigned char *hit;
	int bad;
};

static void cover(int64_t i0, int64_t i1, void *ctx)
{
	struct cover *c = ctx;

	if (i0 < 0 || i1 > c->n || i1 <= i0 || i1 - i0 > c->grain)
		__atomic_store_n(&c->bad, 1, __ATOMIC_RELAXED);
	for (int64_t i = i0; i < i1; i++)
		c->hit[i]++;
}

static void nested(int64_t i0, int64_t i1, void *ctx)
{
	struct cover *c = ctx;
	struct cover inner = {100, 7, c->hit + 100 * i0, 0};

	for (int64_t i = i0; i < i1; i++, inner.hit += 100)
		vfm_par_for(100, 7, cover, &inner);
	if (inner.bad)
		__atomic_store_n(&c->bad, 1, __ATOMIC_RELAXED);
}

static void loops(void **state)
{
	unsigned char hit[5000];

	(void)state;
	assert_true(vfm_par_threads() >= 1);
	for (int t = 1; t <= 3; t++) {
		vfm_par_set_threads(t);
		assert_int_equal(vfm_par_threads(), t);
		for (int64_t n = 0; n <= 5000; n = n * 2 + 1)
			for (int64_t grain = 1; grain <= 2048; grain *= 8) {
				struct cover c = {n, grain, hit, 0};

				memset(hit, 0, sizeof(hit));
				vfm_par_for(n, grain, cover, &c);
				assert_int_equal(c.bad, 0);
				for (int64_t i = 0; i < n; i++)
					assert_int_equal(hit[i], 1);
			}
		memset(hit, 0, sizeof(hit));
		vfm_par_for(50, 3, nested, &(struct cover){50, 3, hit, 0});
		for (int i = 0; i < 5000; i++)
			assert_int_equal(hit[i], 1);
	}
	vfm_par_for(-1, 1, cover, NULL);
}

/* Numbers, which are squared and added up in order. */
struct squares {
	int next, n, taken, fail_read, fail_take;
};

static int read_square(void *ctx, void *item, struct vfm_err *e)
{
	struct squares *s = ctx;

	if (s->next == s->fail_read)
		return vfm_fail(e, VFM_EENV, "read %d", s->next);
	if (s->next == s->n)
		return 0;
	*(int *)item = s->next++;
	return 1;
}

static void work_square(void *ctx, void *item)
{
	(void)ctx;
	if (*(int *)item % 3 == 0)
		sched_yield();
	*(int *)item *= *(int *)item;
}

static int take_square(void *ctx, void *item, struct vfm_err *e)
{
	struct squares *s = ctx;

	if (s->taken == s->fail_take)
		return vfm_fail(e, VFM_EPIPE, "take %d", s->taken);
	assert_int_equal(*(int *)item, s->taken * s->taken);
	s->taken++;
	return 0;
}

static void ordered_items(void **state)
{
	struct vfm_err e;
	int items[3];

	(void)state;
	for (int t = 1; t <= 3; t++) {
		struct squares all = {0, 1000, 0, -1, -1}, none = {0, 0, 0, -1, -1}, unread = {0, 1000, 0, 100, -1},
			       untaken = {0, 1000, 0, -1, 100};
		struct vfm_ordered o = {read_square, work_square, take_square, &all, items, sizeof(items[0])};

		vfm_par_set_threads(t);
		assert_int_equal(vfm_par_ordered(&o, &e), 0);
		assert_int_equal(all.taken, 1000);
		o.ctx = &none;
		assert_int_equal(vfm_par_ordered(&o, &e), 0);
		o.ctx = &unread; /* the items before are taken */
		assert_int_equal(vfm_par_ordered(&o, &e), VFM_EENV);
		assert_string_equal(e.msg, "read 100");
		assert_int_equal(unread.taken, 100);
		o.ctx = &untaken;
		assert_int_equal(vfm_par_ordered(&o, &e), VFM_EPIPE);
		assert_string_equal(e.msg, "take 100");
		assert_int_equal(untaken.taken, 100);
		assert_true(untaken.next <= 100 + 2 * t);
	}
}

static int done;
static void work(void *arg)
{
	(void)arg;
	__atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
}

static void pool(void **state)
{
	struct vfm_pool *p = vfm_pool_new(3, 2);

	(void)state;
	for (int i = 0; i < 1000; i++)
		vfm_pool_push(p, work, NULL);
	vfm_pool_free(p);
	assert_int_equal(done, 1000);
	vfm_pool_free(NULL);
}

static void clocks(void **state)
{
	double a = vfm_now();

	(void)state;
	assert_true(vfm_now() >= a);
	assert_true(vfm_wall_time() > 1.6e9);
}

/* ---- limits of control groups ---- */

static void put_limit(const char *group, const char *name, const char *limit)
{
	char *path = vfm_strfmt("%s/%s", group, name);

	assert_int_equal(vfm_mkdir_p(group, &err), 0);
	assert_int_equal(vfm_write_file(path, limit, strlen(limit), &err), 0);
	free(path);
}

static double limit_of(const char *groups)
{
	assert_int_equal(vfm_write_file("groups", groups, strlen(groups), &err), 0);
	return vfm_cgroup_limit("groups", "cg");
}

static void memory_limits(void **state)
{
	(void)state;
	assert_true(isinf(vfm_cgroup_limit("absent", "cg")));
	assert_true(isinf(limit_of("")));
	assert_true(isinf(limit_of("0::/job_7/step_0\n")));
	put_limit("cg/job_7/step_0/task_1", "memory.max", "max\n");
	put_limit("cg/job_7/step_0", "memory.max", "3000\n");
	put_limit("cg/job_7", "memory.max", "2000\n");
	put_limit("cg/other", "memory.max", "1000\n");
	put_limit("cg/job_70", "memory.max", "10\n");
	assert_true(limit_of("0::/job_7/step_0/task_1\n") == 2000); /* of an ancestor */
	assert_true(limit_of("0::/job_7/step_0/task_1") == 2000);
	assert_true(limit_of("0::/other\n") == 1000);
	assert_true(isinf(limit_of("1:cpu:/other\n0::/\n")));
	put_limit("cg", "memory.max", "500\n"); /* a container's own group is the root */
	assert_true(limit_of("0::/\n") == 500);
	assert_true(limit_of("0::/docker/abc\n") == 500);
	assert_true(limit_of("0::/../other\n") == 500);
	put_limit("cg/memory/a", "memory.limit_in_bytes", "400\n");
	assert_true(limit_of("3:cpu,cpuacct:/a\n4:memory:/a\n") == 400);
	assert_true(limit_of("4:hugetlb,memory:/a/b\n0::/\n") == 400);
	assert_true(isinf(limit_of("4:memoryless:/a\n")));
	put_limit("cg/memory/a", "memory.limit_in_bytes", "9223372036854771712\n");
	assert_true(limit_of("4:memory:/a\n") > 9e18);
	put_limit("cg/memory/a", "memory.limit_in_bytes", "many\n");
	assert_true(isinf(limit_of("4:memory:/a\nno colons\n:\n4:memory\n\n")));
	assert_true(vfm_host_memory() > 1e6 && vfm_host_memory() < 1e16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(atomic),
		cmocka_unit_test(leftovers),
		cmocka_unit_test(concurrent_writers),
		cmocka_unit_test(next_writer),
		cmocka_unit_test(locks),
		cmocka_unit_test(long_names),
		cmocka_unit_test(full_disk),
		cmocka_unit_test(reading),
		cmocka_unit_test(folders),
		cmocka_unit_test(digests),
		cmocka_unit_test(hmac),
		cmocka_unit_test(crc),
		cmocka_unit_test(loops),
		cmocka_unit_test(ordered_items),
		cmocka_unit_test(pool),
		cmocka_unit_test(memory_limits),
		cmocka_unit_test(clocks),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
