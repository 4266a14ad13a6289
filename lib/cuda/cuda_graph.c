#include <stdlib.h>

#include "base/mem.h"
#include "cuda/cuda_sys.h"

/* Graphs: work that is written down by capturing the stream, and launched as one.
 *
 * It is captured every time, so arguments are always right; what stays from time to time is the executable graph, which
 * takes over the arguments of the new one as long as both have the same nodes in the same places.  A few are kept, by
 * their number of nodes, and two of a kind take turns, so that one is not updated while it still runs.  (It might be,
 * and destroyed, too: the driver keeps what it needs.)
 *
 * The mode of capturing is relaxed: this thread and others go on calling what is not of the captured streams, such as
 * mapping memory or asking for events of copies.  Whatever would end the capture badly is refused before it is called
 * (vfm_cuda_refuse), and what still breaks it comes out of the end. */

enum { KEPT = 8, TWINS = 2 };

struct exec {
	cudaGraphExec_t e;
	size_t nodes;
	uint64_t used;
};

struct vfm_cuda_graphs {
	struct exec exec[KEPT];
	uint64_t clock;
};

bool vfm_cuda_captured(const struct vfm_cuda *c, cudaStream_t st)
{
	enum cudaStreamCaptureStatus is = cudaStreamCaptureStatusNone;

	if (!c->sys->capturing)
		return false;
	if (cudaStreamIsCapturing(st, &is) != cudaSuccess) {
		cudaGetLastError();
		return true; /* broken: nothing more is to be put there */
	}
	return is != cudaStreamCaptureStatusNone;
}

int vfm_cuda_refuse(struct vfm_cuda *c, cudaStream_t st, const char *what, bool first, struct vfm_err *err)
{
	if (!vfm_cuda_captured(c, st))
		return 0;
	c->dev.graph_first |= first;
	return vfm_fail(err, VFM_EENV, "%s: not in a graph", what);
}

int vfm_cuda_graph_begin(struct vfm_stream *stream, struct vfm_err *err)
{
	struct vfm_cuda_stream *s = vfm_cuda_stream_of(stream);
	struct vfm_cuda *c = vfm_cuda_of(stream);

	if (s->async || c->sys->capturing)
		return vfm_fail(err, VFM_EUSAGE, "internal: a graph of no compute stream, or within another");
	if (c->sync)
		return vfm_fail(err, VFM_EUSAGE, "VFM_CUDA_SYNC=1 waits behind every operation");
	if (!c->sys->graphs)
		c->sys->graphs = vfm_calloc(1, sizeof(*c->sys->graphs));
	TRY(vfm_cuda_check(cudaStreamBeginCapture(s->st, cudaStreamCaptureModeRelaxed), "the begin of a graph", err));
	c->sys->graph_number++;
	c->sys->capturing = true;
	return 0;
}

/* Of those that fit the one that was used the longest ago, once there are as many as take turns; else an empty place,
 * else the oldest of all. */
static struct exec *place(struct vfm_cuda_graphs *g, size_t nodes)
{
	struct exec *fits = NULL, *at = &g->exec[0];
	int n = 0;

	for (int i = 0; i < KEPT; i++) {
		struct exec *x = &g->exec[i];

		if (x->e && x->nodes == nodes) {
			n++;
			fits = !fits || x->used < fits->used ? x : fits;
		}
		if (at->e && (!x->e || x->used < at->used))
			at = x;
	}
	return n >= TWINS ? fits : at;
}

static void drop(struct exec *x)
{
	if (x->e)
		cudaGraphExecDestroy(x->e);
	*x = (struct exec){0};
}

static int launch(struct vfm_cuda_graphs *g, cudaGraph_t graph, cudaStream_t st, struct vfm_err *err)
{
	cudaGraphExecUpdateResultInfo info;
	struct exec *x;
	size_t nodes = 0;

	TRY(vfm_cuda_check(cudaGraphGetNodes(graph, NULL, &nodes), "a graph", err));
	if (nodes == 0)
		return 0;
	x = place(g, nodes);
	if (x->e && (x->nodes != nodes || cudaGraphExecUpdate(x->e, graph, &info) != cudaSuccess)) {
		cudaGetLastError(); /* another graph: no failure */
		drop(x);
	}
	if (!x->e) {
		int rc = vfm_cuda_check(cudaGraphInstantiate(&x->e, graph, 0), "making a graph executable", err);

		if (rc < 0) {
			x->e = NULL;
			return rc;
		}
		x->nodes = nodes;
	}
	x->used = ++g->clock;
	return vfm_cuda_check(cudaGraphLaunch(x->e, st), "launching a graph", err);
}

int vfm_cuda_graph_end(struct vfm_stream *stream, bool run, struct vfm_err *err)
{
	struct vfm_cuda_sys *y = vfm_cuda_of(stream)->sys;
	cudaStream_t st = vfm_cuda_stream(stream);
	cudaGraph_t graph = NULL;
	int rc;

	if (!y->capturing)
		return vfm_fail(err, VFM_EUSAGE, "internal: the end of no graph");
	rc = vfm_cuda_check(cudaStreamEndCapture(st, &graph), "the end of a graph", err);
	y->capturing = false;
	if (rc == 0 && run)
		rc = launch(y->graphs, graph, st, err);
	if (graph)
		cudaGraphDestroy(graph);
	return run ? rc : 0;
}

void vfm_cuda_graphs_free(struct vfm_cuda_graphs *g)
{
	for (int i = 0; g && i < KEPT; i++)
		drop(&g->exec[i]);
	free(g);
}
