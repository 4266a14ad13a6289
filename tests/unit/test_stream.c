/* Asynchronous streams of the CPU device: order, events, failures, copies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/par.h"
#include "device/cpu/cpu.h"

static struct vfm_dev *dev;
static const struct vfm_dev_table *t;
static struct vfm_stream *compute;
static struct vfm_err err;

struct log {
	int n, v[256];
};
struct entry {
	struct log *log;
	int value, sleep_us, rc;
};

static int write_entry(void *arg, struct vfm_err *e)
{
	struct entry *x = arg;

	if (x->sleep_us)
		usleep((unsigned)x->sleep_us);
	if (x->rc < 0)
		return vfm_fail(e, x->rc, "number %d fell over", x->value);
	x->log->v[x->log->n++] = x->value;
	return 0;
}

static void call(struct vfm_stream *s, struct entry x)
{
	assert_int_equal(t->host_call(s, write_entry, &x, sizeof(x), &err), 0);
}

static int setup(void **state)
{
	(void)state;
	dev = vfm_cpu_open(&err);
	t = dev->t;
	compute = t->stream_new(dev, false, &err);
	return compute ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	t->stream_free(compute);
	t->dev_free(dev);
	return 0;
}

static void test_order(void **state)
{
	struct vfm_stream *s = t->stream_new(dev, true, &err);
	struct log log = {0};
	double t0 = vfm_now(), put_s;

	(void)state;
	/* More than the queue holds at first, the first of them slow: the host runs ahead, the order stays. */
	for (int i = 0; i < 200; i++)
		call(s, (struct entry){&log, i, i ? 0 : 200000, 0});
	put_s = vfm_now() - t0;
	assert_int_equal(t->stream_sync(s, &err), 0);
	assert_true(vfm_now() - t0 >= 0.19);
	assert_true(put_s < 0.19);
	assert_int_equal(log.n, 200);
	for (int i = 0; i < 200; i++)
		assert_int_equal(log.v[i], i);
	assert_true(dev->wait_s > 0);
	t->stream_free(s);

	/* On the compute stream a call runs at once. */
	log.n = 0;
	call(compute, (struct entry){&log, 7, 0, 0});
	assert_int_equal(log.n, 1);
	assert_int_equal(t->host_call(compute, write_entry, &log, 257, &err), VFM_EUSAGE);
}

static void test_events(void **state)
{
	struct vfm_stream *a = t->stream_new(dev, true, &err), *b = t->stream_new(dev, true, &err);
	struct vfm_event *e = t->event_new(dev, &err), *f = t->event_new(dev, &err);
	struct log log = {0};

	(void)state;
	assert_int_equal(t->event_wait(e, compute, &err), 0); /* never recorded */
	for (int round = 0; round < 20; round++) {
		log.n = 0;
		call(a, (struct entry){&log, 1, 3000, 0});
		t->event_record(e, a, &err);
		t->event_wait(e, b, &err);
		call(b, (struct entry){&log, 2, 0, 0});
		t->event_record(f, b, &err);
		t->event_wait(f, a, &err);
		call(a, (struct entry){&log, 3, 0, 0});
		t->event_record(e, a, &err); /* b's wait for the earlier record is not touched */
		assert_int_equal(t->event_wait(e, compute, &err), 0);
		assert_int_equal(log.n, 3);
		for (int i = 0; i < 3; i++)
			assert_int_equal(log.v[i], i + 1);
	}
	t->event_record(e, compute, &err);
	assert_int_equal(t->event_wait(e, a, &err), 0);
	t->event_free(e);
	t->event_free(f);
	t->stream_free(a);
	t->stream_free(b);
}

/* One event serves both directions, over and over. */
static void test_follow(void **state)
{
	struct vfm_stream *a = t->stream_new(dev, true, &err), *b = t->stream_new(dev, true, &err);
	struct vfm_event *e = NULL, *first;
	struct log log = {0};

	(void)state;
	assert_int_equal(vfm_stream_follow(a, a, &e, &err), 0);
	assert_null(e);
	for (int round = 0; round < 20; round++) {
		log.n = 0;
		call(a, (struct entry){&log, 1, 3000, 0});
		assert_int_equal(vfm_stream_follow(b, a, &e, &err), 0);
		first = round ? first : e;
		call(b, (struct entry){&log, 2, 0, 0});
		assert_int_equal(vfm_stream_follow(a, b, &e, &err), 0);
		call(a, (struct entry){&log, 3, 0, 0});
		assert_int_equal(vfm_stream_follow(compute, a, &e, &err), 0);
		assert_int_equal(log.n, 3);
		for (int i = 0; i < 3; i++)
			assert_int_equal(log.v[i], i + 1);
	}
	assert_ptr_equal(e, first);
	call(a, (struct entry){&log, 4, 0, VFM_EENV});
	assert_int_equal(
		vfm_stream_follow(compute, a, &e, &err), VFM_EENV); /* a failure of the leader comes out here */
	err = (struct vfm_err){0};
	assert_int_equal(t->stream_sync(a, &err), VFM_EENV);
	err = (struct vfm_err){0};
	t->event_free(e);
	t->stream_free(a);
	t->stream_free(b);
}

/* Another thread may query events after their stream was freed. */
static void test_outlived(void **state)
{
	struct vfm_stream *a = t->stream_new(dev, true, &err), *b = t->stream_new(dev, true, &err);
	struct vfm_event *e = t->event_new(dev, &err), *f = t->event_new(dev, &err);
	struct log log = {0};

	(void)state;
	call(a, (struct entry){&log, 1, 3000, 0});
	t->event_record(e, a, &err);
	t->event_record(f, a, &err);
	t->stream_free(a);
	assert_true(t->event_passed(e) && t->event_passed(f));
	call(b, (struct entry){&log, 2, 20000, 0});
	t->event_record(e, b, &err); /* the last but one that a has */
	assert_false(t->event_passed(e));
	t->event_free(f);
	t->stream_free(b);
	assert_true(t->event_passed(e));
	t->event_record(e, compute, &err);
	assert_true(t->event_passed(e));
	t->event_free(e);
}

static void test_failure(void **state)
{
	struct vfm_stream *a = t->stream_new(dev, true, &err), *b = t->stream_new(dev, true, &err);
	struct vfm_event *e = t->event_new(dev, &err);
	struct log log = {0};

	(void)state;
	call(a, (struct entry){&log, 1, 0, 0});
	call(a, (struct entry){&log, 2, 0, VFM_EENV});
	call(a, (struct entry){&log, 3, 0, 0});
	t->event_record(e, a, &err);
	assert_int_equal(t->event_wait(e, b, &err), 0); /* queued */
	call(b, (struct entry){&log, 4, 0, 0});
	assert_int_equal(t->event_wait(e, compute, &err), VFM_EENV);
	assert_string_equal(err.msg, "number 2 fell over");
	err = (struct vfm_err){0};
	assert_int_equal(t->stream_sync(b, &err), VFM_EENV); /* the failure of what it waited for */
	assert_string_equal(err.msg, "number 2 fell over");
	assert_int_equal(t->stream_sync(a, &err), VFM_EENV);
	assert_int_equal(log.n, 1);
	t->event_free(e);
	t->stream_free(a);
	t->stream_free(b);
	t->stream_free(NULL);
}

static void test_copies(void **state)
{
	enum { N = 3 << 20 };
	struct vfm_stream *s = t->stream_new(dev, true, &err);
	char *host = malloc(N), *back = malloc(N), *mem = vfm_dev_alloc(compute, N, "a test", &err);
	struct log log = {0};

	(void)state;
	for (int i = 0; i < N; i++)
		host[i] = (char)(i * 7 + i / 1000);
	call(s, (struct entry){&log, 1, 20000, 0});
	t->to_device(s, mem, host, N, &err);
	t->zero(s, mem + 1000, 5000, &err);
	t->to_host(s, back, mem, N, &err);
	assert_int_equal(t->stream_sync(s, &err), 0);
	assert_memory_equal(back, host, 1000);
	assert_memory_equal(back + 6000, host + 6000, N - 6000);
	for (int i = 1000; i < 6000; i++)
		assert_int_equal(back[i], 0);
	vfm_dev_free(compute, mem, N);
	free(host);
	free(back);
	t->stream_free(s);
}

static _Atomic int at_once, most;

static void busy(int64_t i0, int64_t i1, void *ctx)
{
	int n = ++at_once;

	(void)i0, (void)i1, (void)ctx;
	if (n > most)
		most = n;
	usleep(2000);
	at_once--;
}

static int loop(void *arg, struct vfm_err *e)
{
	(void)arg, (void)e;
	vfm_par_for(8, 1, busy, NULL);
	return 0;
}

/* Last: a loop on the compute thread starts the team. */
static void test_serial_loops_and_forks(void **state)
{
	struct vfm_stream *s = t->stream_new(dev, true, &err);
	struct log log = {0};
	int status;
	pid_t pid;

	(void)state;
	vfm_par_set_threads(4);
	pid = fork(); /* before the stream's first work */
	call(s, (struct entry){&log, 5, 0, 0});
	t->host_call(s, loop, NULL, 0, &err);
	assert_int_equal(t->stream_sync(s, &err), 0);
	t->stream_free(s);
	if (pid == 0)
		_exit(log.n == 1 && most == 1 ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(log.n, 1);
	assert_int_equal(most, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_events),
		cmocka_unit_test(test_follow),
		cmocka_unit_test(test_outlived),
		cmocka_unit_test(test_failure),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_serial_loops_and_forks),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
