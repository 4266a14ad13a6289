/* Mappings of files that change while they are in use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "io/file.h"

static struct vfm_err err;
static char dir[] = "/tmp/vfm-map.XXXXXX";

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

static void open_map(struct vfm_map *m, const char *path, const char *content)
{
	assert_int_equal(vfm_write_file(path, content, strlen(content), &err), 0);
	assert_int_equal(vfm_map_open(m, path, &err), 0);
	assert_int_equal(vfm_map_check(m, NULL, NULL, &err), 0);
}

/* Writes into the file itself, without a rename.  The pause exceeds the resolution of time stamps. */
static void rewrite_in_place(const char *path, const char *content)
{
	struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
	int fd = open(path, O_WRONLY | O_TRUNC);

	nanosleep(&pause, NULL);
	assert_int_equal(write(fd, content, strlen(content)), strlen(content));
	close(fd);
}

static int n_verified;

static int verify(void *ctx, struct vfm_err *e)
{
	struct vfm_map *m = ctx;

	n_verified++;
	if (!memcmp(m->data, "content", 7))
		return 0;
	return vfm_fail(e, VFM_EENV, "the content differs");
}

static void changes(void **state)
{
	struct vfm_map m;

	(void)state;
	open_map(&m, "a", "content");
	rewrite_in_place("a", "shorter");
	assert_int_equal(vfm_map_check(&m, NULL, NULL, &err), VFM_EENV);
	assert_string_equal(err.msg, "'a' changed while it was in use");
	assert_int_equal(vfm_map_check(&m, verify, &m, &err), VFM_EENV);
	assert_string_equal(err.msg, "the content differs");
	vfm_map_close(&m);

	open_map(&m, "b", "content");
	rewrite_in_place("b", "content and more");
	assert_int_equal(vfm_map_check(&m, verify, &m, &err), VFM_EENV);
	assert_string_equal(err.msg, "'b' changed while it was in use: it had 7 bytes, now it has 16");
	vfm_map_close(&m);

	/* With its old modification time. */
	open_map(&m, "c", "content");
	rewrite_in_place("c", "changed");
	assert_int_equal(utimensat(AT_FDCWD, "c", (struct timespec[2]){m.stamp.modified, m.stamp.modified}, 0), 0);
	assert_int_equal(vfm_map_check(&m, verify, &m, &err), VFM_EENV);
	vfm_map_close(&m);
}

static void harmless(void **state)
{
	struct vfm_map m;

	(void)state;
	open_map(&m, "t", "content");
	n_verified = 0;
	assert_int_equal(utimensat(AT_FDCWD, "t", NULL, 0), 0);
	assert_int_equal(vfm_map_check(&m, verify, &m, &err), 0);
	assert_int_equal(n_verified, 1);
	assert_int_equal(vfm_map_check(&m, verify, &m, &err), 0);
	assert_int_equal(n_verified, 1);
	/* A new file with this name: the mapping shows the old one. */
	assert_int_equal(vfm_write_file("t", "another", 7, &err), 0);
	assert_int_equal(vfm_map_check(&m, verify, &m, &err), 0);
	assert_memory_equal(m.data, "content", 7);
	vfm_map_close(&m);
}

/* Runs fn in a child; returns its wait status.  text: its stderr. */
static int run_child(void (*fn)(void), char *text, size_t size)
{
	int pipes[2], status;
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	if (pid == 0) {
		dup2(pipes[1], STDERR_FILENO);
		vfm_log_init("prog");
		vfm_map_catch_faults();
		fn();
		_exit(0);
	}
	close(pipes[1]);
	n = read(pipes[0], text, size - 1);
	text[n > 0 ? n : 0] = 0;
	close(pipes[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static volatile uint8_t sink;

static void read_truncated(void)
{
	struct vfm_map m, other;

	vfm_log_set_rank(12);
	vfm_write_file("other", "x", 1, NULL);
	vfm_map_open(&other, "other", NULL);
	vfm_write_file("cut", "content", 7, NULL);
	vfm_map_open(&m, "cut", NULL);
	vfm_map_close(&other);
	if (truncate("cut", 0) == 0)
		sink = m.data[0];
}

/* A mapping that vfm_map_open did not make. */
static void read_unguarded(void)
{
	const uint8_t *data;

	vfm_write_file("cut", "content", 7, NULL);
	data = mmap(NULL, 7, PROT_READ, MAP_PRIVATE, open("cut", O_RDONLY), 0);
	if (data != MAP_FAILED && truncate("cut", 0) == 0)
		sink = data[0];
}

static void faults(void **state)
{
	char text[512];
	int status;

	(void)state;
	status = run_child(read_truncated, text, sizeof(text));
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 3);
	assert_string_equal(text,
		"prog: rank 12: cannot read 'cut': it was truncated while it was in use, or its disk "
		"failed\n");
	status = run_child(read_unguarded, text, sizeof(text));
#ifdef __SANITIZE_ADDRESS__
	assert_int_not_equal(status, 0);
#else
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGBUS);
	assert_string_equal(text, "");
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(changes),
		cmocka_unit_test(harmless),
		cmocka_unit_test(faults),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
