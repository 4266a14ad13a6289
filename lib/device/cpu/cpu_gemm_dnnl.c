/* cpu_gemm_dnnl.c - GEMM by oneDNN; the only file that includes its headers.
 *
 * The C API of oneDNN changed memory and operation descriptors between 2.x and 3.x; this file supports both.  Engine,
 * primitives and memory objects are created on first use and cached by shape, because creating one takes 0.3 to 5 ms.
 */
#include "device/cpu/cpu_impl.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* The functions of the library, which is opened at the first use: commands start without it. */
#if DNNL_VERSION_MAJOR < 3
#define VERSION_FUNCTIONS(X) X(matmul_desc_init) X(memory_desc_init_by_strides) X(primitive_desc_create)
#else
#define VERSION_FUNCTIONS(X) X(matmul_primitive_desc_create) X(memory_desc_create_with_strides) X(memory_desc_destroy)
#endif
#define FUNCTIONS(X)                                                                                                   \
	VERSION_FUNCTIONS(X)                                                                                           \
	X(engine_create)                                                                                               \
	X(engine_destroy)                                                                                              \
	X(memory_create)                                                                                               \
	X(memory_destroy)                                                                                              \
	X(memory_set_data_handle)                                                                                      \
	X(post_ops_append_sum)                                                                                         \
	X(post_ops_create)                                                                                             \
	X(post_ops_destroy)                                                                                            \
	X(primitive_attr_create)                                                                                       \
	X(primitive_attr_destroy)                                                                                      \
	X(primitive_attr_set_post_ops)                                                                                 \
	X(primitive_create)                                                                                            \
	X(primitive_desc_destroy)                                                                                      \
	X(primitive_destroy)                                                                                           \
	X(primitive_execute)                                                                                           \
	X(stream_create)                                                                                               \
	X(stream_destroy)                                                                                              \
	X(stream_wait)                                                                                                 \
	X(version)

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)
#define LIBRARY  "libdnnl.so." TEXT(DNNL_VERSION_MAJOR)

static struct {
	pthread_once_t once;
	const char *why; /* NULL: it is open */
#define X(f) __typeof__(&dnnl_##f) f;
	FUNCTIONS(X)
#undef X
} onednn = {.once = PTHREAD_ONCE_INIT};

static void open_onednn(void)
{
	void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	bool all = lib;

#define X(f) all = all && (onednn.f = (__typeof__(&dnnl_##f))dlsym(lib, "dnnl_" #f));
	FUNCTIONS(X)
#undef X
	if (!all) {
		const char *reason = dlerror();

		onednn.why = vfm_strdup(reason ? reason : LIBRARY ": not found");
	}
}

int vfm_dnnl_open(struct vfm_err *err)
{
	pthread_once(&onednn.once, open_onednn);
	return onednn.why ? vfm_fail(err, VFM_EENV, "VFM_CPU_GEMM: cannot load oneDNN (package libdnnl%d): %s",
				    DNNL_VERSION_MAJOR, onednn.why)
			  : 0;
}

typedef dnnl_memory_desc_t desc; /* 2.x: a struct; 3.x: a handle */
typedef dnnl_primitive_desc_t prim_desc;

/* The cache key of a primitive: plain data, compared as bytes. */
struct key {
	int64_t m, n, k, lda, ldb, ldc;
	int32_t dtype, c_dtype;
	uint8_t trans_a, trans_b, bias, accumulate;
	uint8_t unused[4];
};

struct dnnl_entry {
	struct key key;
	dnnl_primitive_t prim;
	dnnl_memory_t a, b, c, bias;
	struct dnnl_entry *next;
};

enum { BUCKETS = 256 };

struct vfm_dnnl {
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	struct dnnl_entry *table[BUCKETS];
};

const char *vfm_dnnl_version(void)
{
	static char text[32];
	const dnnl_version_t *v = onednn.version();

	snprintf(text, sizeof(text), "%d.%d.%d", v->major, v->minor, v->patch);
	return text;
}

static int dnnl_failed(dnnl_status_t st, const char *what, struct vfm_err *err)
{
	return vfm_fail(err, VFM_EENV, "oneDNN: %s failed (status %d)", what, (int)st);
}

#define CK(call, what)                                                                                                 \
	do {                                                                                                           \
		dnnl_status_t st_ = (call);                                                                            \
		if (st_ != dnnl_success) {                                                                             \
			rc = dnnl_failed(st_, what, err);                                                              \
			goto out;                                                                                      \
		}                                                                                                      \
	} while (0)

static dnnl_data_type_t type(enum vfm_dtype t)
{
	return t == VFM_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* rows x cols; trans: the memory holds cols x rows. */
static dnnl_status_t desc_2d(desc *d, int64_t rows, int64_t cols, int64_t ld, bool trans, dnnl_data_type_t t)
{
	dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : ld, trans ? ld : 1};

#if DNNL_VERSION_MAJOR < 3
	return onednn.memory_desc_init_by_strides(d, 2, dims, t, strides);
#else
	return onednn.memory_desc_create_with_strides(d, 2, dims, t, strides);
#endif
}

static void desc_free(desc *d)
{
#if DNNL_VERSION_MAJOR < 3
	(void)d;
#else
	if (*d)
		onednn.memory_desc_destroy(*d);
#endif
}

static dnnl_status_t make_pd(prim_desc *pd, dnnl_engine_t engine, const desc *a, const desc *b, const desc *bias,
	const desc *c, dnnl_primitive_attr_t attr)
{
#if DNNL_VERSION_MAJOR < 3
	dnnl_matmul_desc_t md;
	dnnl_status_t st = onednn.matmul_desc_init(&md, a, b, bias, c);

	return st != dnnl_success ? st : onednn.primitive_desc_create(pd, &md, attr, engine, NULL);
#else
	return onednn.matmul_primitive_desc_create(pd, engine, *a, *b, bias ? *bias : NULL, *c, attr);
#endif
}

static dnnl_status_t make_memory(dnnl_memory_t *m, const desc *d, dnnl_engine_t engine)
{
#if DNNL_VERSION_MAJOR < 3
	return onednn.memory_create(m, d, engine, DNNL_MEMORY_NONE);
#else
	return onednn.memory_create(m, *d, engine, DNNL_MEMORY_NONE);
#endif
}

static dnnl_status_t add_sum(dnnl_primitive_attr_t attr)
{
	dnnl_post_ops_t ops;
	dnnl_status_t st = onednn.post_ops_create(&ops);

	if (st != dnnl_success)
		return st;
#if DNNL_VERSION_MAJOR < 3
	st = onednn.post_ops_append_sum(ops, 1.0f);
#else
	st = onednn.post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
#endif
	if (st == dnnl_success)
		st = onednn.primitive_attr_set_post_ops(attr, ops);
	onednn.post_ops_destroy(ops);
	return st;
}

static void entry_free(struct dnnl_entry *e)
{
	dnnl_memory_t mem[] = {e->a, e->b, e->c, e->bias};

	for (size_t i = 0; i < sizeof(mem) / sizeof(mem[0]); i++)
		if (mem[i])
			onednn.memory_destroy(mem[i]);
	if (e->prim)
		onednn.primitive_destroy(e->prim);
	free(e);
}

static struct dnnl_entry *entry_new(struct vfm_dnnl *d, const struct key *k, struct vfm_err *err)
{
	struct dnnl_entry *e = vfm_calloc(1, sizeof(*e));
	dnnl_primitive_attr_t attr = NULL;
	prim_desc pd = NULL;
	desc a = {0}, b = {0}, c = {0}, bias = {0};
	int rc = 0;

	e->key = *k;
	CK(desc_2d(&a, k->m, k->k, k->lda, k->trans_a, type((enum vfm_dtype)k->dtype)), "creating a memory descriptor");
	CK(desc_2d(&b, k->k, k->n, k->ldb, k->trans_b, type((enum vfm_dtype)k->dtype)), "creating a memory descriptor");
	CK(desc_2d(&c, k->m, k->n, k->ldc, false, type((enum vfm_dtype)k->c_dtype)), "creating a memory descriptor");
	CK(desc_2d(&bias, 1, k->n, k->n, false, dnnl_f32), "creating a memory descriptor");
	CK(onednn.primitive_attr_create(&attr), "creating a primitive attribute");
	if (k->accumulate)
		CK(add_sum(attr), "adding a post-op");
	CK(make_pd(&pd, d->engine, &a, &b, k->bias ? &bias : NULL, &c, attr), "creating a matmul descriptor");
	CK(onednn.primitive_create(&e->prim, pd), "creating a matmul primitive");
	CK(make_memory(&e->a, &a, d->engine), "creating a memory object");
	CK(make_memory(&e->b, &b, d->engine), "creating a memory object");
	CK(make_memory(&e->c, &c, d->engine), "creating a memory object");
	CK(make_memory(&e->bias, &bias, d->engine), "creating a memory object");
out:
	if (pd)
		onednn.primitive_desc_destroy(pd);
	if (attr)
		onednn.primitive_attr_destroy(attr);
	desc_free(&a);
	desc_free(&b);
	desc_free(&c);
	desc_free(&bias);
	if (rc < 0) {
		entry_free(e);
		return NULL;
	}
	return e;
}

static struct dnnl_entry *find_primitive(struct vfm_dnnl *d, const struct key *k, struct vfm_err *err)
{
	const unsigned char *p = (const unsigned char *)k;
	uint32_t h = 2166136261u;
	struct dnnl_entry *e;

	for (size_t i = 0; i < sizeof(*k); i++)
		h = (h ^ p[i]) * 16777619u; // NOLINT(clang-analyzer-core.UndefinedBinaryOperatorResult): has no padding
	for (e = d->table[h % BUCKETS]; e; e = e->next)
		if (memcmp(&e->key, k, sizeof(*k)) == 0)
			return e;
	e = entry_new(d, k, err);
	if (e) {
		e->next = d->table[h % BUCKETS];
		d->table[h % BUCKETS] = e;
	}
	return e;
}

static int open_engine(struct vfm_cpu *c, struct vfm_err *err)
{
	struct vfm_dnnl *d = vfm_calloc(1, sizeof(*d));
	int rc = 0;

	CK(onednn.engine_create(&d->engine, dnnl_cpu, 0), "creating an engine");
	CK(onednn.stream_create(&d->stream, d->engine, dnnl_stream_default_flags), "creating a stream");
	c->dnnl = d;
	return 0;
out:
	vfm_dnnl_free(d);
	return rc;
}

int vfm_dnnl_matmul(struct vfm_stream *s, const struct vfm_tensor *a, bool trans_a, const struct vfm_tensor *b,
	bool trans_b, const struct vfm_tensor *c, const struct vfm_tensor *bias, bool accumulate, struct vfm_err *err)
{
	struct vfm_cpu *cpu = vfm_cpu_of(s);
	bool with_bias = bias && vfm_has(bias);
	struct key k = {
		.m = c->shape[0],
		.n = c->shape[1],
		.k = a->shape[trans_a ? 0 : 1],
		.lda = a->stride[0],
		.ldb = b->stride[0],
		.ldc = c->stride[0],
		.dtype = a->dtype,
		.c_dtype = c->dtype,
		.trans_a = trans_a,
		.trans_b = trans_b,
		.bias = with_bias,
		.accumulate = accumulate,
	};
	dnnl_exec_arg_t args[4];
	struct dnnl_entry *e;
	int rc = 0;

	if (!cpu->dnnl)
		TRY(open_engine(cpu, err));
	e = find_primitive(cpu->dnnl, &k, err);
	if (!e)
		return VFM_EENV;
	CK(onednn.memory_set_data_handle(e->a, a->data), "setting a data handle");
	CK(onednn.memory_set_data_handle(e->b, b->data), "setting a data handle");
	CK(onednn.memory_set_data_handle(e->c, c->data), "setting a data handle");
	args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, e->a};
	args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, e->b};
	args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, e->c};
	if (with_bias) {
		CK(onednn.memory_set_data_handle(e->bias, bias->data), "setting a data handle");
		args[3] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, e->bias};
	}
	CK(onednn.primitive_execute(e->prim, cpu->dnnl->stream, with_bias ? 4 : 3, args), "executing a matmul");
	CK(onednn.stream_wait(cpu->dnnl->stream), "waiting for a matmul");
out:
	return rc;
}

void vfm_dnnl_free(struct vfm_dnnl *d)
{
	struct dnnl_entry *e, *next;

	if (!d)
		return;
	for (int i = 0; i < BUCKETS; i++)
		for (e = d->table[i]; e; e = next) {
			next = e->next;
			entry_free(e);
		}
	if (d->stream)
		onednn.stream_destroy(d->stream);
	if (d->engine)
		onednn.engine_destroy(d->engine);
	free(d);
}
