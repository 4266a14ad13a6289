/* machine.c - parses and checks the JSON of a machine: rates, tiles, links, CPU. */
#include "device/sim/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/installed.h"
#include "io/document.h"
#include "io/json.h"

enum { FILE_MAX = 1 << 20 };

/* ---- values ---- */

/* Returns the member `key` of o, an object of "value" and "source". */
static int get_sourced(const json_t *o, const char *key, bool required, json_t **value, struct vfm_err *err)
{
	static const char *const keys[] = {"value", "source", NULL};
	json_t *x = json_object_get(o, key);
	const char *source = NULL;

	*value = NULL;
	if (!x && !required)
		return 0;
	if (!json_is_object(x))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object with the keys value and source", key);
	TRY(vfm_json_only_keys(x, key, keys, err));
	TRY(vfm_json_str(x, key, "source", true, &source, err));
	if (!*source)
		return vfm_fail(err, VFM_EUSAGE, "%s.source: is empty", key);
	*value = json_object_get(x, "value");
	if (!*value)
		return vfm_fail(err, VFM_EUSAGE, "%s.value: is missing", key);
	return 0;
}

/* Reads a number above 0, or three of them from the slower to the faster machine. */
static int read_rate(const json_t *x, const char *where, bool falls, struct vfm_rate_range *out, struct vfm_err *err)
{
	bool list = json_is_array(x);

	if (list && json_array_size(x) != VFM_ESTIMATES)
		return vfm_fail(err, VFM_EUSAGE, "%s: expected a number, or the low, middle and high estimate", where);
	for (size_t i = 0; i < VFM_ESTIMATES; i++) {
		const json_t *one = list ? json_array_get(x, i) : x;

		if (!json_is_number(one))
			return vfm_fail(err, VFM_EUSAGE, "%s: expected a number", where);
		out->v[i] = json_number_value(one);
		if (!(out->v[i] >= 0 && out->v[i] <= 1e9))
			return vfm_fail(err, VFM_EUSAGE, "%s: expected 0 to 1e9, got %g", where, out->v[i]);
		if (!falls && out->v[i] < 1e-6)
			return vfm_fail(err, VFM_EUSAGE, "%s: expected at least 1e-6, got %g", where, out->v[i]);
		if (i > 0 && (falls ? out->v[i] > out->v[i - 1] : out->v[i] < out->v[i - 1]))
			return vfm_fail(err, VFM_EUSAGE,
				"%s: expected estimates from the slowest to the fastest machine", where);
	}
	return 0;
}

static int get_rate(
	const json_t *o, const char *key, bool required, bool falls, struct vfm_rate_range *out, struct vfm_err *err)
{
	json_t *x;

	TRY(get_sourced(o, key, required, &x, err));
	return x ? read_rate(x, key, falls, out, err) : 0;
}

/* Reads a rate that is a part of another one, at most 1. */
static int get_fraction(const json_t *o, const char *key, bool falls, struct vfm_rate_range *out, struct vfm_err *err)
{
	TRY(get_rate(o, key, true, falls, out, err));
	for (int e = 0; e < VFM_ESTIMATES; e++)
		if (out->v[e] > 1)
			return vfm_fail(err, VFM_EUSAGE, "%s.value: expected at most 1, got %g", key, out->v[e]);
	return 0;
}

static int get_count(const json_t *o, const char *key, int64_t min, int64_t max, int64_t *out, struct vfm_err *err)
{
	json_t *x;

	TRY(get_sourced(o, key, true, &x, err));
	return vfm_json_i64(json_object_get(o, key), key, "value", true, min, max, out, err);
}

/* ---- tables ---- */

static int read_tiles(const json_t *o, struct vfm_machine *m, struct vfm_err *err)
{
	json_t *list, *row;
	size_t i;

	TRY(get_sourced(o, "gemm_tiles", true, &list, err));
	if (!json_is_array(list) || json_array_size(list) < 1 || json_array_size(list) > VFM_MACHINE_TILES)
		return vfm_fail(err, VFM_EUSAGE, "gemm_tiles.value: expected 1 to %d tiles", VFM_MACHINE_TILES);
	json_array_foreach(list, i, row)
	{
		struct vfm_gemm_tile *t = &m->tile[m->n_tiles++];
		double x[3] = {0};

		for (size_t k = 0; k < 3; k++)
			x[k] = json_number_value(json_array_get(row, k));
		if (json_array_size(row) != 3 || !(x[0] >= 8 && x[0] <= 4096 && x[1] >= 8 && x[1] <= 4096) ||
			x[0] != floor(x[0]) || x[1] != floor(x[1]) || !(x[2] > 0.01 && x[2] <= 1))
			return vfm_fail(err, VFM_EUSAGE, "gemm_tiles.value[%zu]: expected [rows, columns, rate]", i);
		*t = (struct vfm_gemm_tile){(int64_t)x[0], (int64_t)x[1], x[2]};
	}
	return 0;
}

static int read_attention(const json_t *o, struct vfm_machine *m, struct vfm_err *err)
{
	static const char *const keys[] = {"head_dim", "tokens", "forward", "backward", "source", NULL};
	json_t *list = json_object_get(o, "attention"), *row;
	const char *source;
	char where[64];
	size_t i;

	if (!json_is_array(list) || json_array_size(list) < 2 || json_array_size(list) > VFM_MACHINE_ATTN)
		return vfm_fail(err, VFM_EUSAGE, "attention: expected 2 to %d rows", VFM_MACHINE_ATTN);
	json_array_foreach(list, i, row)
	{
		struct vfm_attn_rate *a = &m->attn[m->n_attn], *last = a - 1;

		snprintf(where, sizeof(where), "attention[%zu]", i);
		if (!json_is_object(row))
			return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
		TRY(vfm_json_only_keys(row, where, keys, err));
		TRY(vfm_json_str(row, where, "source", true, &source, err));
		TRY(vfm_json_i64(row, where, "head_dim", true, 8, 1024, &a->head_dim, err));
		TRY(vfm_json_i64(row, where, "tokens", true, 1, 1 << 30, &a->tokens, err));
		snprintf(where, sizeof(where), "attention[%zu].forward", i);
		TRY(read_rate(json_object_get(row, "forward"), where, false, &a->forward, err));
		snprintf(where, sizeof(where), "attention[%zu].backward", i);
		TRY(read_rate(json_object_get(row, "backward"), where, false, &a->backward, err));
		if (i > 0 &&
			(a->head_dim < last->head_dim || (a->head_dim == last->head_dim && a->tokens <= last->tokens)))
			return vfm_fail(err, VFM_EUSAGE, "attention[%zu]: rows ascend by head_dim, then by tokens", i);
		m->n_attn++;
	}
	return 0;
}

/* ---- several GPUs ---- */

/* All keys or none. */
static int read_network(const json_t *o, struct vfm_machine *m, struct vfm_err *err)
{
	if (!json_object_get(o, "gpus_per_node"))
		return 0;
	TRY(get_count(o, "gpus_per_node", 1, 1 << 16, &m->node_gpus, err));
	TRY(get_rate(o, "nvlink_gb_s", true, false, &m->nvlink, err));
	TRY(get_rate(o, "network_gb_s", true, false, &m->network, err));
	TRY(get_rate(o, "collective_us", true, true, &m->collective, err));
	TRY(get_rate(o, "hop_us", true, true, &m->hop, err));
	TRY(get_rate(o, "network_hop_us", true, true, &m->network_hop, err));
	TRY(get_rate(o, "collective_sms", true, true, &m->collective_sms, err));
	if (m->collective_sms.v[VFM_LOW] > (double)m->sms / 2)
		return vfm_fail(err, VFM_EUSAGE, "collective_sms.value: expected at most half of the multiprocessors");
	return 0;
}

/* ---- a CPU ---- */

static int read_cpu_rate(const json_t *row, const char *where, struct vfm_cpu_rate *r, struct vfm_err *err)
{
	static const char *const keys[] = {"op", "dtype", "size", "rate", NULL};
	json_t *size;
	const char *op, *dtype;

	if (!json_is_object(row))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
	TRY(vfm_json_only_keys(row, where, keys, err));
	TRY(vfm_json_str(row, where, "op", true, &op, err));
	TRY(vfm_json_str(row, where, "dtype", true, &dtype, err));
	TRY(vfm_json_f64(row, where, "rate", true, &r->rate, err));
	if (!*op || strlen(op) >= sizeof(r->op))
		return vfm_fail(err, VFM_EUSAGE, "%s.op: expected 1 to %zu bytes", where, sizeof(r->op) - 1);
	strcpy(r->op, op);
	if (strcmp(dtype, "f32") != 0 && strcmp(dtype, "bf16") != 0)
		return vfm_fail(err, VFM_EUSAGE, "%s.dtype: expected f32 or bf16, got '%s'", where, dtype);
	r->dtype = !strcmp(dtype, "f32") ? VFM_F32 : VFM_BF16;
	if (!(r->rate >= 1e-6 && r->rate <= 1e9))
		return vfm_fail(err, VFM_EUSAGE, "%s.rate: expected 1e-6 to 1e9, got %g", where, r->rate);
	size = json_object_get(row, "size");
	if (!json_is_array(size) || json_array_size(size) != 3)
		return vfm_fail(err, VFM_EUSAGE, "%s.size: expected three numbers", where);
	for (size_t i = 0; i < 3; i++) {
		r->size[i] = json_number_value(json_array_get(size, i));
		if (!(r->size[i] >= 1 && r->size[i] <= 1e15))
			return vfm_fail(err, VFM_EUSAGE, "%s.size[%zu]: expected 1 to 1e15", where, i);
	}
	return 0;
}

static int read_copies(const json_t *o, const char *key, struct vfm_cpu_copy_rule *r, struct vfm_err *err)
{
	int64_t *const to[] = {&r->few, &r->rows, &r->columns, &r->depth, &r->bytes};
	enum { N = sizeof(to) / sizeof(*to) };
	json_t *list;

	TRY(get_sourced(o, key, true, &list, err));
	if (!json_is_array(list) || json_array_size(list) != N)
		return vfm_fail(err, VFM_EUSAGE, "%s.value: expected %d integers", key, N);
	for (size_t i = 0; i < N; i++) {
		const json_t *x = json_array_get(list, i);
		int64_t least = to[i] == &r->columns || to[i] == &r->depth;

		*to[i] = json_integer_value(x);
		if (!json_is_integer(x) || *to[i] < least || *to[i] > 1 << 20)
			return vfm_fail(err, VFM_EUSAGE, "%s.value[%zu]: expected %lld to %d", key, i, (long long)least,
				1 << 20);
	}
	return 0;
}

static int read_cpu(const json_t *o, struct vfm_machine *m, struct vfm_err *err)
{
	static const char *const keys[] = {"v", "kind", "name", "capacity_bytes", "ranks", "threads", "copies_f32",
		"copies_bf16", "copy_gb_s", "rates", NULL};
	json_t *list, *row;
	char where[64];
	size_t i;

	TRY(vfm_json_only_keys(o, "", keys, err));
	TRY(get_count(o, "capacity_bytes", 1 << 20, INT64_C(1) << 50, &m->capacity, err));
	TRY(get_count(o, "ranks", 1, 4096, &m->node_gpus, err));
	TRY(get_count(o, "threads", 1, 4096, &m->threads, err));
	TRY(read_copies(o, "copies_f32", &m->copies[0], err));
	TRY(read_copies(o, "copies_bf16", &m->copies[1], err));
	TRY(get_rate(o, "copy_gb_s", true, false, &m->copy, err));
	m->pcie = m->copy;
	m->sms = 1;
	TRY(get_sourced(o, "rates", true, &list, err));
	if (!json_is_array(list) || json_array_size(list) < 1 || json_array_size(list) > VFM_MACHINE_CPU_RATES)
		return vfm_fail(err, VFM_EUSAGE, "rates.value: expected 1 to %d rates", VFM_MACHINE_CPU_RATES);
	json_array_foreach(list, i, row)
	{
		snprintf(where, sizeof(where), "rates.value[%zu]", i);
		TRY(read_cpu_rate(row, where, &m->cpu[m->n_cpu++], err));
	}
	return 0;
}

/* ---- the file ---- */

/* A product of gemm_size rows must take longer than its part without computation (estimate.c). */
static int check_gemm_time(
	const struct vfm_machine *m, const char *key, const struct vfm_rate_range *rate, struct vfm_err *err)
{
	double S = (double)m->gemm_size;

	for (int e = 0; e < VFM_ESTIMATES && rate->v[e] > 0; e++) {
		double product = 2 * S * S * S / (rate->v[e] * 1e12);

		if (product <= m->epilogue.v[e] * 2 * S * S / (m->copy.v[e] * m->kernel.v[e] * 1e9))
			return vfm_fail(err, VFM_EUSAGE,
				"%s.value: at %g a product of %lld rows (gemm_size) takes less time than its results "
				"at copy_gb_s",
				key, rate->v[e], (long long)m->gemm_size);
	}
	return 0;
}

static int read_gpu(const json_t *o, struct vfm_machine *m, struct vfm_err *err)
{
	static const char *const keys[] = {"v", "kind", "name", "capacity_bytes", "context_bytes", "sms", "gemm_size",
		"gemm_bf16_tflops", "gemm_f32_tflops", "gemm_fp8_tflops", "gemm_tiles", "gemm_epilogue", "copy_gb_s",
		"kernel_of_copy", "sm_gb_s", "attention", "gap_us", "graph_gap_us", "launch_host_us", "kernel_us",
		"pcie_gb_s", "host_bytes", "gpus_per_node", "nvlink_gb_s", "network_gb_s", "collective_us", "hop_us",
		"network_hop_us", "collective_sms", NULL};

	TRY(vfm_json_only_keys(o, "", keys, err));
	TRY(get_count(o, "capacity_bytes", 1 << 20, INT64_C(1) << 50, &m->capacity, err));
	TRY(get_count(o, "context_bytes", 0, m->capacity / 2, &m->context, err));
	TRY(get_count(o, "sms", 1, 1 << 16, &m->sms, err));
	TRY(get_count(o, "gemm_size", 128, 1 << 20, &m->gemm_size, err));
	TRY(get_rate(o, "gemm_bf16_tflops", true, false, &m->gemm_bf16, err));
	TRY(get_rate(o, "gemm_f32_tflops", true, false, &m->gemm_f32, err));
	TRY(get_rate(o, "gemm_fp8_tflops", false, false, &m->gemm_f8, err));
	TRY(read_tiles(o, m, err));
	TRY(get_fraction(o, "gemm_epilogue", true, &m->epilogue, err));
	TRY(get_rate(o, "copy_gb_s", true, false, &m->copy, err));
	TRY(get_fraction(o, "kernel_of_copy", false, &m->kernel, err));
	TRY(check_gemm_time(m, "gemm_bf16_tflops", &m->gemm_bf16, err));
	TRY(check_gemm_time(m, "gemm_f32_tflops", &m->gemm_f32, err));
	TRY(check_gemm_time(m, "gemm_fp8_tflops", &m->gemm_f8, err));
	TRY(get_rate(o, "sm_gb_s", false, false, &m->sm_bw, err));
	TRY(read_attention(o, m, err));
	TRY(get_rate(o, "gap_us", true, true, &m->gap, err));
	TRY(get_rate(o, "graph_gap_us", true, true, &m->graph_gap, err));
	TRY(get_rate(o, "launch_host_us", false, true, &m->launch_host, err));
	TRY(get_rate(o, "kernel_us", false, true, &m->least, err));
	TRY(get_rate(o, "pcie_gb_s", true, false, &m->pcie, err));
	if (json_object_get(o, "host_bytes"))
		TRY(get_count(o, "host_bytes", 1 << 20, INT64_C(1) << 50, &m->host, err));
	return read_network(o, m, err);
}

static int read_machine(const json_t *o, struct vfm_machine *m, struct vfm_err *err)
{
	const char *name, *kind = "gpu";
	int64_t v;

	if (!json_is_object(o))
		return vfm_fail(err, VFM_EUSAGE, "expected an object");
	TRY(vfm_json_i64(o, "", "v", true, 1, 1, &v, err));
	TRY(vfm_json_str(o, "", "kind", false, &kind, err));
	if (strcmp(kind, "gpu") != 0 && strcmp(kind, "cpu") != 0)
		return vfm_fail(err, VFM_EUSAGE, "kind: expected gpu or cpu, got '%s'", kind);
	m->kind = !strcmp(kind, "cpu") ? VFM_MACHINE_CPU : VFM_MACHINE_GPU;
	TRY(vfm_json_str(o, "", "name", true, &name, err));
	if (!*name || strlen(name) >= sizeof(m->name))
		return vfm_fail(err, VFM_EUSAGE, "name: expected 1 to %zu bytes", sizeof(m->name) - 1);
	strcpy(m->name, name);
	return m->kind == VFM_MACHINE_CPU ? read_cpu(o, m, err) : read_gpu(o, m, err);
}

static int read_json(struct vfm_machine *m, json_t *o, const char *what, struct vfm_err *err)
{
	int rc;

	*m = (struct vfm_machine){0};
	if (!o)
		return err ? err->code : VFM_EUSAGE;
	rc = read_machine(o, m, err);
	json_decref(o);
	return rc < 0 ? vfm_err_context(err, "%s", what) : 0;
}

int vfm_machine_parse(struct vfm_machine *m, const char *text, size_t len, const char *what, struct vfm_err *err)
{
	return read_json(m, vfm_json_parse(text, len, what, err), what, err);
}

int vfm_machine_load(struct vfm_machine *m, const char *name, struct vfm_err *err)
{
	char *path = vfm_installed_find("machines", name, "VFM_MACHINE_DIR", err);
	int rc;

	if (!path)
		return VFM_EUSAGE;
	rc = read_json(m, vfm_document_load(path, FILE_MAX, err), path, err);
	free(path);
	return rc;
}

void vfm_machine_of_memory(struct vfm_machine *m, enum vfm_machine_kind kind, int64_t capacity, int ranks)
{
	static const char *const calls[] = {
		"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "exchange", "send"};
	static const struct vfm_rate_range one = {{1, 1, 1}};

	*m = (struct vfm_machine){.kind = kind,
		.name = "memory alone",
		.capacity = capacity,
		.sms = 128,
		.gemm_bf16 = one,
		.gemm_f32 = one,
		.gemm_f8 = one,
		.gemm_size = 128,
		.tile = {{128, 128, 1}},
		.n_tiles = 1,
		.epilogue = one,
		.copy = one,
		.kernel = one,
		.sm_bw = one,
		.attn = {{.head_dim = 1024, .tokens = 1, .forward = one, .backward = one}},
		.n_attn = 1,
		.gap = one,
		.graph_gap = one,
		.least = one,
		.pcie = one,
		.node_gpus = kind == VFM_MACHINE_CPU ? ranks : 8,
		.nvlink = one,
		.network = one,
		.collective = one,
		.hop = one,
		.network_hop = one,
		.collective_sms = one,
		.threads = 1,
		.copies = {{.columns = 1, .depth = 1}, {.columns = 1, .depth = 1}}};
	for (size_t i = 0; kind == VFM_MACHINE_CPU && i < sizeof(calls) / sizeof(calls[0]); i++) {
		struct vfm_cpu_rate *r = &m->cpu[m->n_cpu++];

		*r = (struct vfm_cpu_rate){.dtype = VFM_F32, .size = {1, 1, 1}, .rate = 1};
		snprintf(r->op, sizeof(r->op), "comm/%s", calls[i]);
	}
}
