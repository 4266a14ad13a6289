/* cudnn_graph.c - makes descriptors, operations and execution plans of cuDNN's backend API. */
#include "device/cuda/cudnn_graph.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

typedef cudnnBackendDescriptor_t desc;

/* Limit of the workspace of a plan that another one with less could replace. */
enum { MOST_WORKSPACE = 64 << 20 };

struct graph_tensor {
	desc d;
	cudnnDataType_t dt;
	int64_t dim[5];
};

struct vfm_dnn_graph {
	struct vfm_dnn_on on;
	desc *own; /* all descriptors in the order of creation */
	size_t n_own, cap_own;
	struct graph_tensor *t; /* t[i - 1] is vfm_dnn_t i, and i its unique id */
	size_t n_t, cap_t;
	desc *op;
	size_t n_op, cap_op;
	desc graph;
	struct {
		desc d;
		int64_t workspace, engine;
	} plan[VFM_DNN_PLANS]; /* the first one runs */
	struct vfm_dnn_facts facts;
	int rc; /* the first error */
	struct vfm_err err;
};

int vfm_dnn_check(cudnnStatus_t st, const char *what, struct vfm_err *err)
{
	char last[512] = "";

	if (st == CUDNN_STATUS_SUCCESS)
		return 0;
	cudnnGetLastErrorString(last, sizeof(last));
	return vfm_fail(err, VFM_EENV, "cuDNN: %s: %s%s%s", what, cudnnGetErrorString(st), last[0] ? ": " : "", last);
}

struct vfm_dnn_graph *vfm_dnn_new(const struct vfm_dnn_on *on)
{
	struct vfm_dnn_graph *g = vfm_calloc(1, sizeof(*g));

	g->on = *on;
	return g;
}

void vfm_dnn_free(struct vfm_dnn_graph *g)
{
	if (!g)
		return;
	while (g->n_own)
		cudnnBackendDestroyDescriptor(g->own[--g->n_own]);
	free(g->own);
	free(g->t);
	free(g->op);
	free(g);
}

/* ---- descriptors; nothing happens after a failure ---- */

static bool ok(struct vfm_dnn_graph *g, cudnnStatus_t st, const char *what)
{
	if (g->rc == 0 && st != CUDNN_STATUS_SUCCESS)
		g->rc = vfm_dnn_check(st, what, &g->err);
	return g->rc == 0;
}

static desc make_descriptor(struct vfm_dnn_graph *g, cudnnBackendDescriptorType_t type, const char *what)
{
	desc d = NULL;

	if (g->rc < 0 || !ok(g, cudnnBackendCreateDescriptor(type, &d), what))
		return NULL;
	vfm_grow(&g->own, &g->cap_own, g->n_own + 1, sizeof(*g->own));
	g->own[g->n_own++] = d;
	return d;
}

static void set_attribute(struct vfm_dnn_graph *g, desc d, cudnnBackendAttributeName_t a,
	cudnnBackendAttributeType_t type, int64_t n, const void *v, const char *what)
{
	if (g->rc == 0)
		ok(g, cudnnBackendSetAttribute(d, a, type, n, v), what);
}

static void set_desc(struct vfm_dnn_graph *g, desc d, cudnnBackendAttributeName_t a, desc v, const char *what)
{
	set_attribute(g, d, a, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &v, what);
}

static void set_type(
	struct vfm_dnn_graph *g, desc d, cudnnBackendAttributeName_t a, cudnnDataType_t t, const char *what)
{
	set_attribute(g, d, a, CUDNN_TYPE_DATA_TYPE, 1, &t, what);
}

static void finish_descriptor(struct vfm_dnn_graph *g, desc d, const char *what)
{
	if (g->rc == 0)
		ok(g, cudnnBackendFinalize(d), what);
}

static void add_op(struct vfm_dnn_graph *g, desc op, const char *what)
{
	finish_descriptor(g, op, what);
	vfm_grow(&g->op, &g->cap_op, g->n_op + 1, sizeof(*g->op));
	g->op[g->n_op++] = op;
}

/* ---- tensors ---- */

static const struct graph_tensor *tensor(const struct vfm_dnn_graph *g, vfm_dnn_t t)
{
	static const struct graph_tensor nothing;

	return t > 0 && (size_t)t <= g->n_t ? &g->t[t - 1] : &nothing;
}

static void set_tensor(struct vfm_dnn_graph *g, desc d, cudnnBackendAttributeName_t a, vfm_dnn_t t, const char *what)
{
	if (t)
		set_desc(g, d, a, tensor(g, t)->d, what);
}

vfm_dnn_t vfm_dnn_tensor(struct vfm_dnn_graph *g, cudnnDataType_t dt, const int64_t dim[4], const int64_t stride[4],
	enum vfm_dnn_kind kind, vfm_dnn_t ragged)
{
	static const char what[] = "tensor";
	int64_t align = dt == CUDNN_DATA_BFLOAT16 ? 16 : dt == CUDNN_DATA_INT64 ? 8 : 4, uid = (int64_t)g->n_t + 1;
	struct graph_tensor t = {.dt = dt};
	bool yes = true;

	memcpy(t.dim, dim, 4 * sizeof(*dim));
	t.d = make_descriptor(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
	set_type(g, t.d, CUDNN_ATTR_TENSOR_DATA_TYPE, dt, what);
	set_attribute(g, t.d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim, what);
	set_attribute(g, t.d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride, what);
	set_attribute(g, t.d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid, what);
	set_attribute(g, t.d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align, what);
	if (kind == VFM_DNN_VIRTUAL)
		set_attribute(g, t.d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes, what);
	if (kind == VFM_DNN_HOST)
		set_attribute(g, t.d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes, what);
	set_tensor(g, t.d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, ragged, what);
	finish_descriptor(g, t.d, what);
	vfm_grow(&g->t, &g->cap_t, g->n_t + 1, sizeof(*g->t));
	g->t[g->n_t++] = t;
	return (vfm_dnn_t)uid;
}

vfm_dnn_t vfm_dnn_tensor4(
	struct vfm_dnn_graph *g, cudnnDataType_t dt, int64_t a, int64_t b, int64_t c, int64_t d, enum vfm_dnn_kind kind)
{
	return vfm_dnn_tensor(g, dt, (int64_t[4]){a, b, c, d}, (int64_t[4]){b * c * d, c * d, d, 1}, kind, 0);
}

static vfm_dnn_t virtual_like(struct vfm_dnn_graph *g, vfm_dnn_t x, cudnnDataType_t dt)
{
	const int64_t *n = tensor(g, x)->dim;

	return vfm_dnn_tensor4(g, dt, n[0], n[1], n[2], n[3], VFM_DNN_VIRTUAL);
}

/* ---- operations ---- */

struct pointwise {
	cudnnPointwiseMode_t mode;
	cudnnDataType_t compute;
	vfm_dnn_t x, b, t, y;
	int64_t axis;
};

static vfm_dnn_t pointwise(struct vfm_dnn_graph *g, const struct pointwise *p)
{
	static const char what[] = "an operation by element";
	desc pw = make_descriptor(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what), op;

	set_attribute(g, pw, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode, what);
	set_type(g, pw, CUDNN_ATTR_POINTWISE_MATH_PREC, p->compute, what);
	if (p->mode == CUDNN_POINTWISE_GEN_INDEX)
		set_attribute(g, pw, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p->axis, what);
	finish_descriptor(g, pw, what);
	op = make_descriptor(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
	set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pw, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p->x, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p->b, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p->t, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, p->y, what);
	add_op(g, op, what);
	return p->y;
}

vfm_dnn_t vfm_dnn_pw(struct vfm_dnn_graph *g, cudnnPointwiseMode_t mode, vfm_dnn_t x, vfm_dnn_t b, vfm_dnn_t y)
{
	if (!y)
		y = virtual_like(g, x, CUDNN_DATA_FLOAT);
	return pointwise(g, &(struct pointwise){mode, CUDNN_DATA_FLOAT, x, b, 0, y, 0});
}

vfm_dnn_t vfm_dnn_index(struct vfm_dnn_graph *g, vfm_dnn_t x, int axis)
{
	vfm_dnn_t y = virtual_like(g, x, CUDNN_DATA_INT32);

	return pointwise(g, &(struct pointwise){CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, x, 0, 0, y, axis});
}

vfm_dnn_t vfm_dnn_logic(struct vfm_dnn_graph *g, cudnnPointwiseMode_t mode, vfm_dnn_t a, vfm_dnn_t b)
{
	vfm_dnn_t y = virtual_like(g, a, CUDNN_DATA_BOOLEAN);

	return pointwise(g, &(struct pointwise){mode, CUDNN_DATA_BOOLEAN, a, b, 0, y, 0});
}

vfm_dnn_t vfm_dnn_select(struct vfm_dnn_graph *g, vfm_dnn_t keep, vfm_dnn_t x, vfm_dnn_t b)
{
	vfm_dnn_t y = virtual_like(g, x, CUDNN_DATA_FLOAT);

	return pointwise(g, &(struct pointwise){CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, b, keep, y, 0});
}

vfm_dnn_t vfm_dnn_reduce(struct vfm_dnn_graph *g, cudnnReduceTensorOp_t mode, vfm_dnn_t x, vfm_dnn_t y)
{
	static const char what[] = "a reduction";
	const int64_t *n = tensor(g, x)->dim;
	desc r, op;

	if (!y)
		y = vfm_dnn_tensor4(g, CUDNN_DATA_FLOAT, n[0], n[1], n[2], 1, VFM_DNN_VIRTUAL);
	r = make_descriptor(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
	set_type(g, r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT, what);
	set_attribute(g, r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode, what);
	finish_descriptor(g, r, what);
	op = make_descriptor(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
	set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, what);
	add_op(g, op, what);
	return y;
}

vfm_dnn_t vfm_dnn_reshape(struct vfm_dnn_graph *g, vfm_dnn_t x, vfm_dnn_t y)
{
	static const char what[] = "another view";
	desc op = make_descriptor(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);

	set_tensor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y, what);
	add_op(g, op, what);
	return y;
}

vfm_dnn_t vfm_dnn_matmul(struct vfm_dnn_graph *g, vfm_dnn_t a, vfm_dnn_t b, struct vfm_dnn_mnk len, vfm_dnn_t y)
{
	static const char what[] = "a product";
	const int64_t *m = tensor(g, a)->dim, *n = tensor(g, b)->dim;
	const double zero = 0;
	desc mm, op;

	if (!y)
		y = vfm_dnn_tensor4(g, CUDNN_DATA_FLOAT, m[0], m[1], m[2], n[3], VFM_DNN_VIRTUAL);
	mm = make_descriptor(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
	set_type(g, mm, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT, what);
	if (len.zero_rest)
		set_attribute(g, mm, CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, 1, &zero, what);
	finish_descriptor(g, mm, what);
	op = make_descriptor(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y, what);
	set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, mm, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, len.m, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, len.n, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, len.k, what);
	add_op(g, op, what);
	return y;
}

void vfm_dnn_sdpa(struct vfm_dnn_graph *g, const struct vfm_dnn_sdpa *x)
{
	static const char what[] = "attention as one operation";
#if CUDNN_VERSION >= 91500
	desc op = make_descriptor(g, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, what);

	set_tensor(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, x->q, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, x->k, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, x->v, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, x->o, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, x->lse, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, x->scale, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, x->len_q, what);
	set_tensor(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, x->len_k, what);
	add_op(g, op, what);
#else
	(void)x;
	if (g->rc == 0)
		g->rc = vfm_fail(&g->err, VFM_EENV, "cuDNN: %s needs the headers of version 9.15", what);
#endif
}

/* ---- plans ---- */

/* Loads the builtins of NVRTC, which compiles the kernels of plans, from NVRTC's folder.  NVRTC opens them by name
 * alone, and the loader does not find them if only the RUNPATH of this library leads to the toolkit.  Ignores failures:
 * cuDNN reports them when it compiles. */
static void load_builtins(void)
{
	char name[32], dir[PATH_MAX], path[PATH_MAX + 64];
	int (*version)(int *, int *) = NULL, major = 0, minor = 0;
	void *nvrtc;

	snprintf(name, sizeof(name), "libnvrtc.so.%d", (int)(cudnnGetCudartVersion() / 1000));
	nvrtc = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!nvrtc)
		return;
	*(void **)&version = dlsym(nvrtc, "nvrtcVersion");
	if (!version || version(&major, &minor) != 0 || dlinfo(nvrtc, RTLD_DI_ORIGIN, dir) < 0)
		return;
	snprintf(path, sizeof(path), "%s/libnvrtc-builtins.so.%d.%d", dir, major, minor);
	dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Returns whether an engine states that its order of additions varies, or states nothing about it. */
static bool adds_in_any_order(desc engine)
{
	cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
	int64_t n = 0;

	if (cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
		    CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes) != CUDNN_STATUS_SUCCESS)
		return true;
	for (int64_t i = 0; i < n; i++)
		if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
			return true;
	return false;
}

/* Appends the plan of a configuration to g->plan.  Returns 0, or an error that states why this one fails. */
static int try_config(struct vfm_dnn_graph *g, desc config, bool deterministic, struct vfm_err *err)
{
	desc engine = make_descriptor(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine"),
	     plan = make_descriptor(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "a plan");
	int64_t one, index = 0, workspace = 0;

	if (g->rc < 0)
		return vfm_fail(err, g->rc, "%s", g->err.msg);
	TRY(vfm_dnn_check(cudnnBackendGetAttribute(
				  config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one, &engine),
		"an engine", err));
	cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &one, &index);
	if (deterministic && adds_in_any_order(engine))
		return vfm_fail(err, VFM_EENV, "cuDNN: engine %d is not deterministic", (int)index);
	if (g->on.handle)
		TRY(vfm_dnn_check(cudnnBackendSetAttribute(
					  plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->on.handle),
			"a plan", err));
	else
		TRY(vfm_dnn_check(cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
					  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->on.devprop),
			"a plan", err));
	TRY(vfm_dnn_check(cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
				  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config),
		"a plan", err));
	TRY(vfm_dnn_check(cudnnBackendFinalize(plan), "a plan", err));
	TRY(vfm_dnn_check(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
				  &one, &workspace),
		"a plan", err));
	if (g->facts.plans && workspace > g->facts.workspace && workspace > MOST_WORKSPACE)
		return vfm_fail(err, VFM_EENV, "cuDNN: engine %d needs too large a workspace", (int)index);
	if (g->facts.plans == 0)
		g->facts.engine = index;
	if (workspace > g->facts.workspace)
		g->facts.workspace = workspace;
	g->plan[g->facts.plans].d = plan;
	g->plan[g->facts.plans].engine = index;
	g->plan[g->facts.plans++].workspace = workspace;
	return 0;
}

/* Tries the configurations of the heuristics in this mode, in their order, until g has `most` plans. */
static int try_mode(
	struct vfm_dnn_graph *g, cudnnBackendHeurMode_t mode, bool deterministic, int most, struct vfm_err *err)
{
	static const char what[] = "heuristics";
	desc heur = make_descriptor(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what), config[16];
	int64_t n = 0;

	set_desc(g, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, g->graph, what);
	set_attribute(g, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, what);
	if (!g->on.handle)
		set_desc(g, heur, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->on.devprop, what);
	for (int i = 0; i < 16; i++)
		config[i] = make_descriptor(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
	if (g->rc < 0)
		return vfm_fail(err, g->rc, "%s", g->err.msg);
	TRY(vfm_dnn_check(cudnnBackendFinalize(heur), what, err));
	TRY(vfm_dnn_check(cudnnBackendGetAttribute(
				  heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 16, &n, config),
		what, err));
	if (n == 0)
		return vfm_fail(err, VFM_EENV, "cuDNN: no engine for this graph of operations");
	if (n > 16)
		n = 16;
	g->facts.configs += (int)n;
	for (int64_t i = 0; i < n && g->facts.plans < most; i++) {
		g->facts.tried++;
		try_config(g, config[i], deterministic, err);
	}
	return g->facts.plans ? 0 : VFM_EENV;
}

int vfm_dnn_build(struct vfm_dnn_graph *g, bool deterministic, int most, struct vfm_err *err)
{
	static const char what[] = "the graph of operations";
	static pthread_once_t loaded = PTHREAD_ONCE_INIT;
	struct vfm_err first = {0};

	pthread_once(&loaded, load_builtins);
	g->graph = make_descriptor(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, what);
	if (g->on.handle)
		set_attribute(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->on.handle, what);
	set_attribute(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, (int64_t)g->n_op,
		g->op, what);
	finish_descriptor(g, g->graph, what);
	g->facts.ops = (int)g->n_op;
	if (g->rc < 0)
		return vfm_fail(err, g->rc, "%s", g->err.msg);
	if (most > VFM_DNN_PLANS)
		most = VFM_DNN_PLANS;
	if (try_mode(g, CUDNN_HEUR_MODE_A, deterministic, most, &first) == 0)
		return 0;
	if (try_mode(g, CUDNN_HEUR_MODE_B, deterministic, most, err) == 0 ||
		try_mode(g, CUDNN_HEUR_MODE_FALLBACK, deterministic, most, err) == 0)
		return 0;
	return vfm_fail(err, VFM_EENV, "%s", first.msg); /* with the more accurate mode */
}

void vfm_dnn_use(struct vfm_dnn_graph *g, int i)
{
	g->plan[0] = g->plan[i];
	g->facts.plans = 1;
	g->facts.engine = g->plan[0].engine;
	g->facts.workspace = g->plan[0].workspace;
}

struct vfm_dnn_facts vfm_dnn_facts(const struct vfm_dnn_graph *g)
{
	return g->facts;
}

int vfm_dnn_run(struct vfm_dnn_graph *g, int plan, cudaStream_t s, const struct vfm_dnn_bind *b, int n, void *workspace,
	struct vfm_err *err)
{
	enum { MOST = 32 };
	int64_t uid[MOST], k = 0;
	void *ptr[MOST];
	cudnnStatus_t st;
	desc vp;

	for (int i = 0; i < n; i++) {
		if (!b[i].t)
			continue;
		if (k == MOST)
			return vfm_fail(err, VFM_EUSAGE, "cuDNN: more than %d tensors are bound", MOST);
		uid[k] = b[i].t;
		ptr[k++] = b[i].p;
	}
	TRY(vfm_dnn_check(cudnnSetStream(g->on.handle, s), "the stream", err));
	TRY(vfm_dnn_check(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &vp), "operands", err));
	st = cudnnBackendSetAttribute(vp, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, k, uid);
	if (!st)
		st = cudnnBackendSetAttribute(vp, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, k, ptr);
	if (!st)
		st = cudnnBackendSetAttribute(
			vp, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
	if (!st)
		st = cudnnBackendFinalize(vp);
	if (!st)
		st = cudnnBackendExecute(g->on.handle, g->plan[plan].d, vp);
	vfm_dnn_check(st, "execution", err); /* must precede other calls, which overwrite it */
	cudnnBackendDestroyDescriptor(vp);
	return st ? VFM_EENV : 0;
}
