/* Tests the causes of stalls of the compute stream.  The CPU counts host waits; an asynchronous device (async_mock.h)
 * measures the time between two events. */
#include "device/dev/stall.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "async_mock.h"

static struct vfm_err err;
#define OK(call) assert_int_equal((call) < 0 ? (print_message("%s\n", err.msg), -1) : 0, 0)

static int nap(void *arg, struct vfm_err *e)
{
	(void)e;
	return nanosleep(&(struct timespec){0, *(long *)arg * 1000000}, NULL);
}

/* Delays the other stream and makes s wait for it. */
static void wait_for(struct vfm_stream *s, struct vfm_stream *other, struct vfm_event *e, long ms, enum vfm_stall why)
{
	OK(s->dev->t->host_call(other, nap, &ms, sizeof(ms), &err));
	OK(s->dev->t->event_record(e, other, &err));
	OK(vfm_stall_wait(e, s, why, &err));
}

static void by_reason(struct vfm_dev *d)
{
	struct vfm_stream *s = d->t->stream_new(d, false, &err), *other = d->t->stream_new(d, true, &err);
	struct vfm_event *e = d->t->event_new(d, &err), *done = d->t->event_new(d, &err);
	struct vfm_stalls *st;
	double x[VFM_STALLS];
	int64_t mark[3];
	double t0, t1;

	wait_for(s, other, e, 1, VFM_STALL_COMM); /* not measured: no vfm_stalls yet */
	st = vfm_stalls_new(s);
	wait_for(s, other, e, 30, VFM_STALL_COMM);
	mark[0] = vfm_stalls_mark(st);
	t0 = vfm_now();
	wait_for(s, other, e, 10, VFM_STALL_COMM);
	wait_for(s, other, e, 20, VFM_STALL_COPY);
	vfm_stall_begin(other, VFM_STALL_COPY); /* not the measured stream */
	vfm_stall_begin(s, VFM_STALL_BUBBLE);
	wait_for(s, other, e, 40, VFM_STALL_COMM); /* the outermost cause counts */
	vfm_stall_end(s);
	vfm_stall_end(other);
	mark[1] = vfm_stalls_mark(st);
	t1 = vfm_now();
	wait_for(s, other, e, 15, VFM_STALL_COMM);
	mark[2] = vfm_stalls_mark(st);
	OK(d->t->event_record(done, s, &err));
	OK(d->t->event_sync(done, &err));

	vfm_stalls_between(st, mark[0], mark[1], x);
	assert_true(x[VFM_STALL_COMM] >= 0.0095 && x[VFM_STALL_COPY] >= 0.0195 && x[VFM_STALL_BUBBLE] >= 0.0395);
	assert_true(x[VFM_STALL_COMM] + x[VFM_STALL_COPY] + x[VFM_STALL_BUBBLE] <= t1 - t0);
	vfm_stalls_between(st, mark[1], mark[2], x);
	assert_true(x[VFM_STALL_COMM] >= 0.0145 && x[VFM_STALL_COPY] == 0 && x[VFM_STALL_BUBBLE] == 0);
	vfm_stalls_between(st, mark[1], mark[2], x); /* reported only once */
	assert_true(x[VFM_STALL_COMM] == 0);
	vfm_stalls_free(st);
	assert_null(d->stalls);
	wait_for(s, other, e, 1, VFM_STALL_COMM);

	OK(d->t->stream_sync(other, &err));
	d->t->event_free(e);
	d->t->event_free(done);
	d->t->stream_free(other);
	d->t->stream_free(s);
	d->t->dev_free(d);
}

static void test_cpu(void **state)
{
	(void)state;
	by_reason(vfm_cpu_open(&err));
}

static void test_async(void **state)
{
	(void)state;
	by_reason(mock_open(false, &err));
}

/* The ring grows with the unread stalls and reuses its events; stalls beyond its limit are not measured. */
static void test_ring(void **state)
{
	enum { MANY = 300, MOST = 1 << 18 };
	struct vfm_dev *d = mock_open(false, &err);
	struct vfm_stream *s = d->t->stream_new(d, false, &err);
	struct vfm_stalls *st = vfm_stalls_new(s);
	struct vfm_event *never = d->t->event_new(d, &err), *done = d->t->event_new(d, &err);
	double x[VFM_STALLS];
	int64_t a = 0, made;

	(void)state;
	for (int round = 0; round < 3; round++) {
		made = mock.timed_events;
		for (int i = 0; i < MANY; i++)
			OK(vfm_stall_wait(never, s, VFM_STALL_COMM, &err));
		assert_int_equal(vfm_stalls_mark(st), a + MANY);
		OK(d->t->event_record(done, s, &err));
		OK(d->t->event_sync(done, &err));
		vfm_stalls_between(st, a, a + MANY, x);
		assert_true(x[VFM_STALL_COMM] >= 0);
		a += MANY;
		if (round == 2)
			assert_int_equal(mock.timed_events, made);
	}
	for (int i = 0; i < MOST + 10; i++)
		OK(vfm_stall_wait(never, s, VFM_STALL_COMM, &err));
	assert_int_equal(vfm_stalls_mark(st), a + MOST);
	OK(d->t->event_record(done, s, &err));
	OK(d->t->event_sync(done, &err));
	vfm_stalls_between(st, a, a + MOST, x);
	OK(vfm_stall_wait(never, s, VFM_STALL_COMM, &err));
	assert_int_equal(vfm_stalls_mark(st), a + MOST + 1);
	vfm_stalls_free(st);
	d->t->event_free(never);
	d->t->event_free(done);
	d->t->stream_free(s);
	d->t->dev_free(d);
}

/* Timed events also work on other streams. */
static void test_elapsed(void **state)
{
	struct vfm_dev *d = vfm_cpu_open(&err);
	struct vfm_stream *other = d->t->stream_new(d, true, &err);
	struct vfm_event *a = d->t->event_new_timed(d, &err), *b = d->t->event_new_timed(d, &err),
			 *plain = d->t->event_new(d, &err);
	double s;

	(void)state;
	OK(d->t->event_record(a, other, &err));
	OK(d->t->host_call(other, nap, &(long){12}, sizeof(long), &err));
	OK(d->t->event_record(b, other, &err));
	OK(d->t->event_sync(b, &err));
	OK(d->t->event_elapsed(a, b, &s, &err));
	assert_true(s >= 0.0115 && s < 1);
	assert_true(d->t->event_elapsed(a, plain, &s, &err) < 0);
	d->t->event_free(a);
	d->t->event_free(b);
	d->t->event_free(plain);
	d->t->stream_free(other);
	d->t->dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cpu),
		cmocka_unit_test(test_async),
		cmocka_unit_test(test_ring),
		cmocka_unit_test(test_elapsed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
