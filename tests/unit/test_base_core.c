/* Errors, numbers, memory, log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/near.h"
#include "base/num.h"

static void err_messages(void **state)
{
	struct vfm_err e = {0};

	(void)state;
	assert_int_equal(vfm_fail(&e, VFM_EINPUT, "no %s", "way"), VFM_EINPUT);
	assert_int_equal(e.code, VFM_EINPUT);
	assert_string_equal(e.msg, "no way");
	assert_int_equal(vfm_err_context(&e, "key %d", 3), VFM_EINPUT);
	assert_string_equal(e.msg, "key 3: no way");
	errno = ENOSPC;
	assert_int_equal(vfm_fail_errno(&e, VFM_EENV, "cannot write '%s'", "x"), VFM_EENV);
	assert_string_equal(e.msg, "cannot write 'x': No space left on device");
	assert_int_equal(vfm_fail(NULL, VFM_EENV, "x"), VFM_EENV);
	assert_true(vfm_err_context(NULL, "x") < 0);
}

/* A file name may be longer than the message: the cut message is valid UTF-8 and keeps the reason of errno. */
static void err_codes(void **state)
{
	static const int machine[] = {EMFILE, ENFILE, ENOMEM, ENOSPC, EDQUOT, EROFS, EIO, ESTALE, ENOTCONN},
			 file[] = {ENOENT, EACCES, EISDIR, ELOOP, ENAMETOOLONG, 0};

	(void)state;
	for (size_t i = 0; i < sizeof(machine) / sizeof(machine[0]); i++)
		assert_int_equal(vfm_errno_code(machine[i], VFM_EINPUT), VFM_EENV);
	for (size_t i = 0; i < sizeof(file) / sizeof(file[0]); i++)
		assert_int_equal(vfm_errno_code(file[i], VFM_EINPUT), VFM_EINPUT);
}

static void err_long(void **state)
{
	struct vfm_err e = {0};
	char name[4 * VFM_ERR_MAX];

	(void)state;
	for (size_t shift = 0; shift < 3; shift++) {
		memset(name, 'a', sizeof(name));
		for (size_t i = shift; i + 2 < sizeof(name); i += 2)
			memcpy(name + i, "\xc3\xa9", 2);
		name[sizeof(name) - 1] = 0;
		vfm_fail(&e, VFM_EINPUT, "%s", name);
		assert_true(strlen(e.msg) < VFM_ERR_MAX);
		assert_string_equal(e.msg + strlen(e.msg) - 3, "...");
		assert_int_not_equal((unsigned char)e.msg[strlen(e.msg) - 4], 0xc3);
		errno = ENOENT;
		vfm_fail_errno(&e, VFM_EINPUT, "cannot open '%s'", name);
		assert_non_null(strstr(e.msg, "...: No such file or directory"));
		assert_int_not_equal((unsigned char)strstr(e.msg, "...")[-1], 0xc3);
		vfm_err_context(&e, "%s", "record 3");
		assert_memory_equal(e.msg, "record 3: cannot open", 21);
		vfm_err_context(&e, "%s", name);
		assert_true(strlen(e.msg) < VFM_ERR_MAX);
	}
}

static void integers(void **state)
{
	static const char *const bad[] = {"", "-", "+1", " 1", "1 ", "1x", "0x10", "1.0", "1e3", "--1",
		"9223372036854775808", "-9223372036854775809", "99999999999999999999999", "\xd9\xa1"};
	struct vfm_err e = {0};
	int64_t v = 77;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(vfm_parse_i64(bad[i], INT64_MIN, INT64_MAX, &v, &e), VFM_EUSAGE);
		assert_int_equal(v, 77);
	}
	vfm_parse_i64("12x", 0, 100, &v, &e);
	assert_string_equal(e.msg, "expected an integer, got '12x'");
	vfm_parse_i64("101", 0, 100, &v, &e);
	assert_string_equal(e.msg, "expected an integer from 0 to 100, got '101'");
	vfm_parse_i64("0", 1, INT64_MAX, &v, &e);
	assert_string_equal(e.msg, "expected an integer of at least 1, got '0'");
	assert_int_equal(vfm_parse_i64("-9223372036854775808", INT64_MIN, INT64_MAX, &v, &e), 0);
	assert_true(v == INT64_MIN);
	assert_int_equal(vfm_parse_i64("9223372036854775807", INT64_MIN, INT64_MAX, &v, &e), 0);
	assert_true(v == INT64_MAX);
	assert_int_equal(vfm_parse_i64("007", 0, 7, &v, &e), 0);
	assert_int_equal(v, 7);
	assert_int_equal(vfm_parse_i64("-3", -3, -3, &v, &e), 0);
	assert_int_equal(v, -3);
}

static void sizes(void **state)
{
	static const char *const bad[] = {
		"", "K", "-1", "1k", "1KB", "1KiB", "1.5G", "1 K", "1P", "8388608T", "9223372036854775808"};
	struct vfm_err e = {0};
	int64_t v = 77;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(vfm_parse_size(bad[i], &v, &e), VFM_EUSAGE);
	assert_int_equal(v, 77);
	assert_int_equal(vfm_parse_size("0", &v, &e), 0);
	assert_int_equal(v, 0);
	assert_int_equal(vfm_parse_size("3K", &v, &e), 0);
	assert_int_equal(v, 3072);
	assert_int_equal(vfm_parse_size("2M", &v, &e), 0);
	assert_int_equal(v, 2 << 20);
	assert_int_equal(vfm_parse_size("8388607T", &v, &e), 0);
	assert_true(v == (int64_t)8388607 << 40);
}

static void reals(void **state)
{
	static const char *const bad[] = {"", "nan", "inf", "-inf", "0x1p3", " 1", "1 ", "1e", "1.2.3", "1e999",
		"-1e999", "e5", ".", "1,5", "--1"};
	struct vfm_err e = {0};
	double v = 77;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(vfm_parse_f64(bad[i], &v, &e), VFM_EUSAGE);
	assert_true(v == 77);
	assert_int_equal(vfm_parse_f64("-1.5e-3", &v, &e), 0);
	assert_true(v == -1.5e-3);
	assert_int_equal(vfm_parse_f64(".5", &v, &e), 0);
	assert_true(v == 0.5);
	assert_int_equal(vfm_parse_f64("1e-320", &v, &e), 0); /* an underflow is no error */
	assert_true(v > 0 && v < DBL_MIN);
}

static void memory(void **state)
{
	struct vfm_err e = {0};
	struct vfm_arena a = {0};
	int *grown = NULL;
	size_t cap = 0;
	char *p;

	(void)state;
	p = vfm_big_alloc(100, "small", &e);
	assert_int_equal((uintptr_t)p % 64, 0);
	vfm_big_free(p, 100);
	p = vfm_big_alloc(0, "nothing", &e);
	assert_non_null(p);
	vfm_big_free(p, 0);
	p = vfm_big_alloc((size_t)9 << 20, "large", &e);
	assert_non_null(p);
	memset(p, 1, (size_t)9 << 20);
	vfm_big_free(p, (size_t)9 << 20);
	assert_null(vfm_big_alloc((size_t)1 << 62, "tensor blocks.3.fc1", &e));
	assert_int_equal(e.code, VFM_EENV);
	assert_non_null(strstr(e.msg, "tensor blocks.3.fc1"));
	for (size_t n = 1; n < 1000; n++) {
		vfm_grow(&grown, &cap, n, sizeof(*grown));
		assert_true(cap >= n);
		grown[n - 1] = (int)n;
	}
	assert_int_equal(grown[500], 501);
	free(grown);
	for (size_t n = 0; n < 300000; n = n * 3 + 1) {
		p = vfm_arena_alloc(&a, n);
		assert_int_equal((uintptr_t)p % 16, 0);
		for (size_t i = 0; i < n; i++)
			assert_int_equal(p[i], 0);
		memset(p, 0xff, n);
	}
	assert_string_equal(vfm_arena_strdup(&a, "hello"), "hello");
	vfm_arena_release(&a);
	assert_null(a.head);
	p = vfm_strfmt("%d-%s", 3, "x");
	assert_string_equal(p, "3-x");
	free(p);
}

static void text(void **state)
{
	struct vfm_buf b = {0};

	(void)state;
	vfm_buf_add(&b, NULL, 0);
	assert_string_equal(b.data, "");
	for (int i = 0; i < 1000; i++)
		vfm_buf_addf(&b, "%d,", i % 10);
	assert_int_equal(b.len, 2000);
	assert_int_equal(strlen(b.data), 2000);
	vfm_buf_clear(&b);
	vfm_buf_addf(&b, "%500s", "x");
	assert_int_equal(b.len, 500);
	vfm_buf_adds(&b, "end");
	assert_string_equal(b.data + 499, "xend");
	vfm_buf_release(&b);
	assert_null(b.data);
}

static void near_words(void **state)
{
	static const char *const list[] = {"steps", "seed", "n", "batch", NULL};

	(void)state;
	assert_string_equal(vfm_near("stpes", list), "steps");
	assert_string_equal(vfm_near("step", list), "steps");
	assert_string_equal(vfm_near("bacth", list), "batch");
	assert_null(vfm_near("lr", list));
	assert_null(vfm_near("", list));
	assert_null(vfm_near("completely-else", list));
}

/* Returns the output of fn on stderr. */
static void captured(void (*fn)(void), char *buf, size_t size)
{
	int fd[2], was = dup(2);
	ssize_t n;

	assert_int_equal(pipe(fd), 0);
	dup2(fd[1], 2);
	fn();
	dup2(was, 2);
	close(fd[1]);
	close(was);
	n = read(fd[0], buf, size - 1);
	assert_true(n >= 0);
	buf[n] = 0;
	close(fd[0]);
}

static void talk(void)
{
	vfm_info("one %d", 1);
	vfm_log_set_rank(3);
	vfm_warn("two");
	vfm_log_set_quiet(true);
	vfm_info("never");
	vfm_error("bad name 'a\nb\033[2J'");
}

static void log_lines(void **state)
{
	char buf[1024];

	(void)state;
	vfm_log_init("/usr/bin/vfm-x");
	captured(talk, buf, sizeof(buf));
	vfm_log_set_rank(-1);
	vfm_log_set_quiet(false);
	assert_string_equal(buf, "vfm-x: one 1\nvfm-x: rank 3: warning: two\nvfm-x: rank 3: bad name 'a?b?[2J'\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(err_messages),
		cmocka_unit_test(err_codes),
		cmocka_unit_test(err_long),
		cmocka_unit_test(integers),
		cmocka_unit_test(sizes),
		cmocka_unit_test(reals),
		cmocka_unit_test(memory),
		cmocka_unit_test(text),
		cmocka_unit_test(near_words),
		cmocka_unit_test(log_lines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
