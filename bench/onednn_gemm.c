/* onednn_gemm - oneDNN's matrix products of the cases that `vfm-bench ops` names.
 *
 * usage: onednn_gemm REPEAT CASE...    (gemm/fc1-fwd/bf16-bf16/nt/4096x1536x384; threads: OMP_NUM_THREADS)
 * prints a JSON line for each: {"case":…,"ms":…}, the median
 *
 * Forward products add a bias, fc1-fwd applies GELU, and weight gradients are added to C, as post-ops.  What oneDNN has no post-op
 * for is left out, in its favour: the second result of fc1-fwd, the derivative of fc2-dgrad, the row sums of weight gradients.
 */
#include <dnnl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct product {
	char name[32], in[8], out[8], trans[4];
	int64_t m, n, k;
};

static void check(dnnl_status_t st, const char *what)
{
	if (st == dnnl_success)
		return;
	fprintf(stderr, "onednn_gemm: %s: status %d\n", what, (int)st);
	exit(3);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dnnl_data_type_t type_of(const char *name)
{
	return strcmp(name, "bf16") == 0 ? dnnl_bf16 : dnnl_f32;
}

/* Memory of a matrix [rows, cols], transposed if `trans`, with numbers in [0, 1). */
static dnnl_memory_t make_matrix(
	dnnl_engine_t engine, dnnl_memory_desc_t *d, int64_t rows, int64_t cols, bool trans, dnnl_data_type_t type)
{
	dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : cols, trans ? rows : 1};
	dnnl_memory_t m;
	void *p;

#if DNNL_VERSION_MAJOR < 3
	check(dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides), "a descriptor");
	check(dnnl_memory_create(&m, d, engine, DNNL_MEMORY_ALLOCATE), "memory");
#else
	check(dnnl_memory_desc_create_with_strides(d, 2, dims, type, strides), "a descriptor");
	check(dnnl_memory_create(&m, *d, engine, DNNL_MEMORY_ALLOCATE), "memory");
#endif
	check(dnnl_memory_get_data_handle(m, &p), "memory");
	for (int64_t i = 0; i < rows * cols; i++) {
		float x = (float)(i * 2654435761u % 1024) / 1024;
		uint32_t bits;

		memcpy(&bits, &x, sizeof(bits));
		if (type == dnnl_bf16)
			((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
		else
			((float *)p)[i] = x;
	}
	return m;
}

static dnnl_primitive_attr_t make_post_ops(bool sum, bool gelu)
{
	dnnl_primitive_attr_t attr;
	dnnl_post_ops_t ops;

	check(dnnl_primitive_attr_create(&attr), "an attribute");
	check(dnnl_post_ops_create(&ops), "post-ops");
#if DNNL_VERSION_MAJOR < 3
	if (sum)
		check(dnnl_post_ops_append_sum(ops, 1), "a sum");
	if (gelu)
		check(dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_gelu_tanh, 0, 0), "GELU");
#else
	if (sum)
		check(dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef), "a sum");
	if (gelu)
		check(dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_gelu_tanh, 0, 0), "GELU");
#endif
	check(dnnl_primitive_attr_set_post_ops(attr, ops), "post-ops");
	check(dnnl_post_ops_destroy(ops), "post-ops");
	return attr;
}

static int compare_times(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double measure(dnnl_engine_t engine, dnnl_stream_t stream, const struct product *q, int repeat)
{
	bool forward = strstr(q->name, "-fwd") != NULL;
	dnnl_memory_desc_t da, db, dc, dbias;
	dnnl_exec_arg_t args[] = {
		{DNNL_ARG_SRC, make_matrix(engine, &da, q->m, q->k, q->trans[0] == 't', type_of(q->in))},
		{DNNL_ARG_WEIGHTS, make_matrix(engine, &db, q->k, q->n, q->trans[1] == 't', type_of(q->in))},
		{DNNL_ARG_DST, make_matrix(engine, &dc, q->m, q->n, false, type_of(q->out))},
		{DNNL_ARG_BIAS, make_matrix(engine, &dbias, 1, q->n, false, dnnl_f32)},
	};
	dnnl_primitive_attr_t attr = make_post_ops(strstr(q->name, "-wgrad"), strcmp(q->name, "fc1-fwd") == 0);
	dnnl_primitive_desc_t pd;
	dnnl_primitive_t prim;
	double *s = calloc((size_t)repeat, sizeof(*s)), median;

#if DNNL_VERSION_MAJOR < 3
	dnnl_matmul_desc_t md;

	check(dnnl_matmul_desc_init(&md, &da, &db, forward ? &dbias : NULL, &dc), "a matmul");
	check(dnnl_primitive_desc_create(&pd, &md, attr, engine, NULL), "a matmul");
#else
	check(dnnl_matmul_primitive_desc_create(&pd, engine, da, db, forward ? dbias : NULL, dc, attr), "a matmul");
#endif
	check(dnnl_primitive_create(&prim, pd), "a primitive");
	for (int i = -1; i < repeat; i++) { /* the first call is not counted */
		double t = now();

		check(dnnl_primitive_execute(prim, stream, forward ? 4 : 3, args), "executing");
		check(dnnl_stream_wait(stream), "executing");
		if (i >= 0)
			s[i] = now() - t;
	}
	qsort(s, (size_t)repeat, sizeof(*s), compare_times);
	median = (s[repeat / 2] + s[(repeat - 1) / 2]) / 2;
	free(s);
	for (int i = 0; i < 4; i++)
		check(dnnl_memory_destroy(args[i].memory), "memory");
	check(dnnl_primitive_destroy(prim), "a primitive");
	check(dnnl_primitive_desc_destroy(pd), "a matmul");
	check(dnnl_primitive_attr_destroy(attr), "an attribute");
	return median;
}

int main(int argc, char **argv)
{
	int repeat = argc > 2 ? atoi(argv[1]) : 0;
	dnnl_engine_t engine;
	dnnl_stream_t stream;

	if (repeat < 1) {
		fprintf(stderr, "usage: onednn_gemm REPEAT CASE...\n");
		return 2;
	}
	check(dnnl_engine_create(&engine, dnnl_cpu, 0), "an engine");
	check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "a stream");
	for (int i = 2; i < argc; i++) {
		struct product q;

		if (sscanf(argv[i], "gemm/%31[^/]/%7[^-]-%7[^/]/%3[^/]/%ldx%ldx%ld", q.name, q.in, q.out, q.trans, &q.m,
			    &q.n, &q.k) != 7) {
			fprintf(stderr, "onednn_gemm: '%s' is no case of a product\n", argv[i]);
			return 2;
		}
		printf("{\"case\":\"%s\",\"ms\":%.6f}\n", argv[i], 1e3 * measure(engine, stream, &q, repeat));
	}
	return fflush(stdout) != 0;
}
