/* The cache of executable graphs (lib/device/cuda/cuda_graph.c) on a mock runtime that counts: a capture has as many
 * nodes as the test sets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_sys.h"

static struct {
	size_t nodes; /* of the next graph */
	/* broken: the capture fails; other: no executable graph fits; full: no memory for one */
	bool capturing, broken, other, full;
	int graphs, execs; /* there are */
	int instantiated, updated, launched;
	void *last; /* launched */
} rt;

struct fake {
	size_t nodes;
};

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
	(void)s;
	assert_int_equal(mode, cudaStreamCaptureModeRelaxed);
	rt.capturing = true;
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
	struct fake *f;

	(void)s;
	rt.capturing = false;
	*g = NULL;
	if (rt.broken)
		return cudaErrorStreamCaptureInvalidated;
	f = malloc(sizeof(*f));
	f->nodes = rt.nodes;
	rt.graphs++;
	*g = (cudaGraph_t)f;
	return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *is)
{
	*is = rt.capturing && (uintptr_t)s == 1 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
	return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n)
{
	assert_null(nodes);
	*n = ((struct fake *)g)->nodes;
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long flags)
{
	struct fake *f;

	(void)flags;
	if (rt.full)
		return cudaErrorMemoryAllocation;
	f = malloc(sizeof(*f));
	*f = *(struct fake *)g;
	rt.execs++;
	rt.instantiated++;
	*e = (cudaGraphExec_t)f;
	return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t e, cudaGraph_t g, cudaGraphExecUpdateResultInfo *info)
{
	(void)info;
	if (rt.other || ((struct fake *)e)->nodes != ((struct fake *)g)->nodes)
		return cudaErrorGraphExecUpdateFailure;
	rt.updated++;
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s)
{
	(void)s;
	rt.launched++;
	rt.last = e;
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e)
{
	rt.execs--;
	free(e);
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
	rt.graphs--;
	free(g);
	return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
	return cudaSuccess;
}

/* ---- of the device ---- */

int vfm_cuda_check(cudaError_t e, const char *what, struct vfm_err *err)
{
	return e == cudaSuccess ? 0 : vfm_fail(err, VFM_EENV, "%s: %d", what, (int)e);
}

cudaStream_t vfm_cuda_stream(struct vfm_stream *s)
{
	return vfm_cuda_stream_of(s)->st;
}

static struct vfm_cuda_sys y;
static struct vfm_cuda c = {.sys = &y};
static struct vfm_cuda_stream compute, side;
static struct vfm_err err;

static int graph(size_t nodes, bool run)
{
	rt.nodes = nodes;
	assert_int_equal(vfm_cuda_graph_begin(&compute.s, &err), 0);
	return vfm_cuda_graph_end(&compute.s, run, &err);
}

static int setup(void **state)
{
	(void)state;
	compute = (struct vfm_cuda_stream){.s = {.dev = &c.dev}, .st = (cudaStream_t)(uintptr_t)1};
	side = (struct vfm_cuda_stream){.s = {.dev = &c.dev}, .st = (cudaStream_t)(uintptr_t)2, .async = true};
	return 0;
}

static void test_kept(void **state)
{
	void *a, *b;

	(void)state;
	assert_int_equal(graph(100, true), 0);
	a = rt.last;
	assert_int_equal(graph(100, true), 0);
	b = rt.last;
	assert_true(a != b && rt.instantiated == 2 && rt.updated == 0);
	for (int i = 0; i < 10; i++) {
		assert_int_equal(graph(100, true), 0);
		assert_ptr_equal(rt.last, i % 2 ? b : a); /* by turns */
	}
	assert_true(rt.instantiated == 2 && rt.updated == 10 && rt.launched == 12);
	/* A different graph with as many nodes replaces an old one. */
	rt.other = true;
	assert_int_equal(graph(100, true), 0);
	rt.other = false;
	assert_true(rt.instantiated == 3 && rt.execs == 2);
	/* More kinds than slots: the oldest are freed. */
	for (size_t n = 1; n <= 20; n++)
		assert_int_equal(graph(n, true), 0);
	assert_true(rt.execs == 8 && rt.instantiated == 23);
	assert_int_equal(graph(20, true), 0);
	assert_int_equal(graph(20, true), 0);
	assert_true(rt.execs == 8 && rt.instantiated == 24);
	assert_int_equal(rt.graphs, 0);
}

static void test_dropped(void **state)
{
	int launched = rt.launched;

	(void)state;
	assert_int_equal(graph(100, false), 0);
	assert_int_equal(graph(0, true), 0); /* nothing was enqueued */
	rt.broken = true;
	assert_true(graph(100, true) < 0);
	assert_int_equal(graph(100, false), 0);
	rt.broken = false;
	rt.full = true;
	assert_true(graph(77, true) < 0);
	rt.full = false;
	assert_true(rt.launched == launched && rt.graphs == 0 && !y.capturing);
	assert_int_equal(graph(77, true), 0);
	assert_int_equal(rt.launched, launched + 1);
}

static void test_refused(void **state)
{
	(void)state;
	assert_int_equal(vfm_cuda_refuse(&c, compute.st, "waiting", true, &err), 0);
	assert_true(vfm_cuda_graph_end(&compute.s, true, &err) == VFM_EUSAGE);
	assert_true(vfm_cuda_graph_begin(&side.s, &err) == VFM_EUSAGE);
	c.sync = true;
	assert_true(vfm_cuda_graph_begin(&compute.s, &err) == VFM_EUSAGE);
	c.sync = false;
	assert_int_equal(vfm_cuda_graph_begin(&compute.s, &err), 0);
	assert_true(vfm_cuda_graph_begin(&compute.s, &err) == VFM_EUSAGE);
	c.dev.graph_first = false;
	assert_int_equal(vfm_cuda_refuse(&c, side.st, "waiting", true, &err), 0); /* the event is not of the capture */
	assert_true(vfm_cuda_refuse(&c, compute.st, "waiting", false, &err) == VFM_EENV && !c.dev.graph_first);
	assert_string_equal(err.msg, "waiting: cannot be captured in a graph");
	assert_true(vfm_cuda_refuse(&c, compute.st, "a size", true, &err) == VFM_EENV && c.dev.graph_first);
	assert_int_equal(vfm_cuda_graph_end(&compute.s, false, &err), 0);
	vfm_cuda_graphs_free(y.graphs);
	assert_int_equal(rt.execs, 0);
	vfm_cuda_graphs_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kept),
		cmocka_unit_test(test_dropped),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
