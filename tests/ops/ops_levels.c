/* ops_levels.c - the devices under test, and operands of cases as doubles. */
#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/cpu/cpu.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/cpu_isa.h"
#include "emu_dev.h"
#include "mirror.h"
#include "ops_test.h"
#include "device/open/open.h"

struct op_level levels[VFM_ISA_N + 4];
int n_levels, n_isa, n_full;
const char *device, *case_words;
struct vfm_cases cases;
int n_bad;

bool has_op(int level, enum vfm_op_id op)
{
	if (level >= n_full)
		return op == VFM_OP_gemm || op == VFM_OP_grouped_gemm || op == VFM_OP_conv3d;
	return level != n_isa || vfm_emu_has(op);
}

bool case_wanted(const struct vfm_case *c)
{
	bool any = false, yes = false;
	char pattern[128];

	if (!(c->flags & (device ? VFM_CASE_TEST | VFM_CASE_TEST_GPU : VFM_CASE_TEST)))
		return false;
	for (const char *w = case_words; w && *w;) {
		size_t n = strcspn(w, ","), minus = *w == '-';

		if (!minus)
			any = true;
		snprintf(pattern, sizeof(pattern), "%.*s*", (int)(n - minus), w + minus);
		if (fnmatch(pattern, c->name, 0) == 0) {
			if (minus)
				return false;
			yes = true;
		}
		w += n + (w[n] == ',');
	}
	return yes || !any;
}

void case_bad(const char *level, const struct vfm_case *c, const char *fmt, ...)
{
	va_list ap;

	if (++n_bad > (device ? 1000 : 40)) /* on a device, print nearly all of them */
		return;
	fprintf(stderr, "%s: %s: ", level, c->name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

static int open_level(const char *name, struct vfm_dev *(*open)(struct vfm_err *err))
{
	struct op_level *l = &levels[n_levels++];
	struct vfm_err err = {0};

	l->name = name;
	l->dev = open(&err);
	l->s = l->dev ? l->dev->t->stream_new(l->dev, false, &err) : NULL;
	if (!l->s)
		fprintf(stderr, "%s: %s\n", name, err.msg);
	return l->s ? 0 : -1;
}

static struct vfm_dev *open_mirror(struct vfm_err *err)
{
	struct vfm_device d;
	struct vfm_dev *m;

	if (vfm_device_open(&d, device, err) < 0)
		return NULL;
	fprintf(stderr, "%s: %s\n", d.dev->name, d.dev->descr);
	m = vfm_mirror_open(d.dev, d.stream, err);
	return m;
}

/* Makes the cases.  A filter that matches none of them is an error. */
static int make_cases(void)
{
	vfm_cases_init(&cases);
	for (size_t k = 0; k < cases.n; k++)
		if (case_wanted(cases.v[k]))
			return 0;
	fprintf(stderr, "VFM_TEST_CASES=%s: no such case\n", case_words);
	return -1;
}

int open_levels(void **state)
{
	(void)state;
	if (device) {
		n_isa = n_full = 1;
		TRY(make_cases());
		return open_level(device, open_mirror);
	}
	for (n_isa = 0; n_isa <= (int)vfm_isa_best(); n_isa++) {
		setenv("VFM_CPU_ISA", vfm_isa_name((enum vfm_isa)n_isa), 1);
		TRY(open_level(vfm_isa_name((enum vfm_isa)n_isa), vfm_cpu_open));
	}
	TRY(open_level("CUDA, emulated", vfm_emu_open));
	n_full = n_levels;
	TRY(open_level("AMX, emulated", open_amx_model));
	TRY(open_level("CUDA, emulated, epilogues of the library", vfm_emu_open_epilogues));
	TRY(open_level("CUDA, emulated, plain products of the library", vfm_emu_open_plain));
	levels[n_levels - 1].rounds = levels[n_levels - 2].rounds = true;
	return make_cases();
}

int close_levels(void **state)
{
	int leaks = 0;

	(void)state;
	vfm_cases_release(&cases);
	vfm_emu_close_libraries();
	for (int i = 0; i < n_levels; i++) {
		leaks += levels[i].dev->mem_now != 0;
		levels[i].dev->t->stream_free(levels[i].s);
		levels[i].dev->t->dev_free(levels[i].dev);
	}
	if (leaks)
		fprintf(stderr, "%d devices have memory that was not given back\n", leaks);
	return leaks;
}

/* ---- operands ---- */

int64_t operand_offset(const struct vfm_tensor *t, int64_t i)
{
	int64_t off = 0;

	if (t->ndim == 1 || t->stride[0] * t->shape[0] == vfm_numel(t))
		return i;
	for (int k = t->ndim - 1; k >= 0; k--) {
		off += i % t->shape[k] * t->stride[k];
		i /= t->shape[k];
	}
	return off;
}

double operand_get(const struct vfm_tensor *t, const char *mem, int64_t i)
{
	double x;

	i = operand_offset(t, i);
	if (t->dtype == VFM_F32)
		return (double)((const float *)mem)[i];
	if (t->dtype == VFM_BF16)
		return (double)vfm_bf16_to_f32(((const uint16_t *)mem)[i]);
	vfm_dtype_to_f64(&x, t->dtype, mem + (size_t)i * vfm_dtype_size(t->dtype), 1);
	return x;
}

double *operand_doubles(const struct vfm_tensor *t, const char *mem)
{
	int64_t n = vfm_numel(t);
	double *v = vfm_calloc((size_t)n + 1, sizeof(*v));

	for (int64_t i = 0; i < n; i++)
		v[i] = operand_get(t, mem, i);
	return v;
}

/* Rounds v to the operand's dtype, so that the reference reads the values that the op reads. */
void operand_put(struct vfm_tensor *t, double *v)
{
	for (int64_t i = 0; i < vfm_numel(t); i++) {
		char *at = (char *)t->data + (size_t)operand_offset(t, i) * vfm_dtype_size(t->dtype);

		vfm_dtype_convert(t->dtype, at, VFM_F64, &v[i], 1);
		v[i] = operand_get(t, t->data, i);
	}
}

void ref_of_case(struct ref *r, struct vfm_case *c)
{
	const struct vfm_operand *o = vfm_op_info(c->op)->operands;

	*r = (struct ref){.op = c->op, .args = &c->args};
	for (int i = 0; o[i].name; i++) {
		struct vfm_tensor *t = vfm_operand_of(&c->args, &o[i]);

		if (vfm_has(t))
			r->v[i] = operand_doubles(t, t->data);
	}
}

void ref_release(struct ref *r)
{
	for (int i = 0; i < VFM_MAX_OPERANDS; i++)
		free(r->v[i]);
}

void image_take(struct image *m, struct vfm_case *c, bool saved)
{
	const struct vfm_operand *o = vfm_op_info(c->op)->operands;
	struct vfm_err err = {0};

	*m = (struct image){0};
	assert_int_equal(vfm_case_alloc(c, levels[0].s, 1, &err), 0);
	if (saved)
		fill_saved_operands(c);
	for (int i = 0; o[i].name; i++)
		if (vfm_has(vfm_operand_of(&c->args, &o[i]))) {
			m->bytes[i] = vfm_malloc(c->bytes[i]);
			memcpy(m->bytes[i], vfm_operand_of(&c->args, &o[i])->data, c->bytes[i]);
		}
}

void image_put(const struct image *m, struct vfm_case *c)
{
	for (int i = 0; i < VFM_MAX_OPERANDS; i++)
		if (m->bytes[i])
			memcpy(vfm_operand_of(&c->args, &vfm_op_info(c->op)->operands[i])->data, m->bytes[i],
				c->bytes[i]);
}

void image_release(struct image *m, struct vfm_case *c)
{
	for (int i = 0; i < VFM_MAX_OPERANDS; i++)
		free(m->bytes[i]);
	vfm_case_free(c, levels[0].s);
}
