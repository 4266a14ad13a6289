/* cuda_graph.c - captures the work of a stream and updates an executable graph with it. */
#include <stdlib.h>

#include "base/mem.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_sys.h"

/* Graphs: the work of a stream, captured and launched as one.
 *
 * Each launch has a capture of its own, so arguments are always right; a few executable graphs are kept by their number
 * of nodes and take the arguments of the new one.  Two of a kind alternate, so that none is updated while it runs.
 */

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
		return true; /* the graph is invalid: refuse further work */
	}
	return is != cudaStreamCaptureStatusNone;
}

int vfm_cuda_refuse(struct vfm_cuda *c, cudaStream_t st, const char *what, bool first, struct vfm_err *err)
{
	if (!vfm_cuda_captured(c, st))
		return 0;
	c->dev.graph_first |= first;
	return vfm_fail(err, VFM_EENV, "%s: cannot be captured in a graph", what);
}

int vfm_cuda_graph_begin(struct vfm_stream *stream, struct vfm_err *err)
{
	struct vfm_cuda_stream *s = vfm_cuda_stream_of(stream);
	struct vfm_cuda *c = vfm_cuda_of(stream);

	if (s->async || c->sys->capturing)
		return vfm_fail(
			err, VFM_EUSAGE, "internal: a capture of a stream other than compute, or within a capture");
	if (c->sync)
		return vfm_fail(err, VFM_EUSAGE, "VFM_CUDA_SYNC=1 waits after every operation, which a graph cannot");
	if (!c->sys->graphs)
		c->sys->graphs = vfm_calloc(1, sizeof(*c->sys->graphs));
	TRY(vfm_cuda_check(
		cudaStreamBeginCapture(s->st, cudaStreamCaptureModeRelaxed), "beginning a graph capture", err));
	c->sys->graph_number++;
	c->sys->capturing = true;
	return 0;
}

/* Chooses an executable graph.  If there are two with this number of nodes, the least recently used of them; else an
 * empty slot, or the least recently used one. */
static struct exec *choose_slot(struct vfm_cuda_graphs *g, size_t nodes)
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

static void drop_graph(struct exec *x)
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
	x = choose_slot(g, nodes);
	if (x->e && (x->nodes != nodes || cudaGraphExecUpdate(x->e, graph, &info) != cudaSuccess)) {
		cudaGetLastError(); /* a different graph: no error */
		drop_graph(x);
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
		return vfm_fail(err, VFM_EUSAGE, "internal: ending a capture that was not begun");
	rc = vfm_cuda_check(cudaStreamEndCapture(st, &graph), "ending a graph capture", err);
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
		drop_graph(&g->exec[i]);
	free(g);
}
