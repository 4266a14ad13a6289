/* Attention of the CUDA device through cuDNN, without either: attn.c, cudnn_attn.c and attn_pack.c unchanged, our
 * kernels emulated, and graphs executed on the host (dnn_ref.c).  Every bf16 case of the list is compared with the CPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "device/cuda/attn.c" /* for its limits */

#include "dev_stub.h"
#include "device/cuda/attn.h"
#include "device/ops/cases_impl.h"
#include "dnn_ref.h"

cudnnStatus_t cudnnCreate(cudnnHandle_t *h)
{
	static int it;

	*h = (cudnnHandle_t)(void *)&it;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t h)
{
	(void)h;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s)
{
	(void)h, (void)s;
	return CUDNN_STATUS_SUCCESS;
}

/* A device without plans; each has an ordinal of its own. */
static struct vfm_cuda device_of(int sm)
{
	static int ordinal;

	return (struct vfm_cuda){.sm = sm, .ordinal = ++ordinal, .dev.t = &stub_table};
}

static double at(const char *mem, enum vfm_dtype t, int64_t i)
{
	return t == VFM_F32 ? (double)((const float *)(const void *)mem)[i]
			    : (double)vfm_bf16_to_f32(((const uint16_t *)(const void *)mem)[i]);
}

/* Compares all bytes of an operand, gaps and guard included: equal, or close values. */
static void compare(const struct vfm_case *c, int o, const struct vfm_tensor *t, const char *want, const char *got)
{
	size_t size = vfm_dtype_size(t->dtype), n = c->bytes[o] / size;
	double rms = 0;

	for (int64_t i = 0; i < vfm_numel(t); i++) {
		int64_t cols = t->shape[1] * (t->ndim == 3 ? t->shape[2] : 1);
		double x = at(want, t->dtype, i / cols * t->stride[0] + i % cols);

		rms += isfinite(x) ? x * x / (double)vfm_numel(t) : 0;
	}
	rms = sqrt(rms);
	for (size_t i = 0; i < n; i++) {
		double x = at(want, t->dtype, (int64_t)i), y = at(got, t->dtype, (int64_t)i);

		if (memcmp(want + i * size, got + i * size, size) != 0 && !(fabs(x - y) <= 0.05 * rms + 0.01 * fabs(x)))
			fail_msg("%s: %s: element %zu is %g, not %g (rms %g)", c->name,
				vfm_op_info(c->op)->operands[o].name, i, y, x, rms);
	}
}

static void check(struct vfm_case *c, struct vfm_cuda *dev)
{
	const struct vfm_operand *o = vfm_op_info(c->op)->operands;
	char *want[VFM_MAX_OPERANDS] = {0};
	struct vfm_stream s = {.dev = &dev->dev};
	struct vfm_err err = {0};
	int rc;

	assert_int_equal(vfm_case_alloc(c, cpu_s, 1, &err), 0);
	assert_int_equal(vfm_case_run(c, cpu_s, &err), 0);
	for (int i = 0; o[i].name; i++) {
		want[i] = vfm_malloc(c->bytes[i]);
		memcpy(want[i], vfm_operand_of(&c->args, &o[i])->data, c->bytes[i]);
	}
	vfm_case_free(c, cpu_s);
	assert_int_equal(vfm_case_alloc(c, cpu_s, 1, &err), 0);
	rc = c->op == VFM_OP_attn ? vfm_cuda_attn(&s, &c->args.attn, &err)
				  : vfm_cuda_attn_bwd(&s, &c->args.attn_bwd, &err);
	if (rc < 0)
		fail_msg("%s: %s", c->name, err.msg);
	for (int i = 0; o[i].name; i++) {
		compare(c, i, vfm_operand_of(&c->args, &o[i]), want[i], vfm_operand_of(&c->args, &o[i])->data);
		free(want[i]);
	}
	vfm_case_free(c, cpu_s);
}

/* The name states the expected plan: attn/packed-ring/bf16 … */
static void check_kind(const struct vfm_case *c)
{
	static const char *const kinds[] = {[VFM_ATTN_PACKED] = "packed", [VFM_ATTN_FIXED] = "fixed"};
	struct vfm_attn_limits lim = {.hkv = 1, .group = 1};
	const char *name = strchr(c->name, '/') + 1;
	struct vfm_attn_piece *p;
	int n = vfm_attn_pieces(&c->seqs[0], &c->seqs[1], &lim, &p);

	if (n > 0 && !strstr(name, "-odd") && !strstr(name, "-any") &&
		strncmp(name, kinds[p->kind], strlen(kinds[p->kind])) != 0)
		fail_msg("%s is %s", c->name, kinds[p->kind]);
	free(p);
}

/* Packed backwards of Ampere, Ada and GeForce Blackwell have lse by samples (the front end of cuDNN 9.18 refuses a packed
 * lse for 8.x and 12.x); those of both Blackwells write no gradient in f32. */
static void check_backward_plans(const struct vfm_cuda_attn *c)
{
	for (size_t i = 0; i < c->n; i++) {
		const struct vfm_dnn_attn_key *k = &c->plan[i]->key;

		if (!k->bwd)
			continue;
		if (k->ragged && !c->set.only_apart)
			assert_int_equal(k->apart, c->sm / 10 == 8 || c->sm / 10 == 12 || k->d % 16 != 0);
		if (c->sm / 10 == 10 || c->sm / 10 == 12)
			assert_true(k->dq_type == VFM_BF16 && k->dkv_type == VFM_BF16);
	}
}

static const char *among = ""; /* only cases with this in their name */

/* Runs every bf16 case on a device of this kind. */
static void all(int sm, bool deterministic, const char *mode, int64_t pairs)
{
	struct vfm_cuda dev = device_of(sm);
	struct vfm_err err = {0};
	struct vfm_stream s = {.dev = &dev.dev};
	int n = 0;

	dev.deterministic = deterministic;
	setenv("VFM_CUDA_ATTN", mode, 1);
	assert_non_null(attn_context(&s, &err));
	if (pairs)
		dev.attn->pairs = pairs;
	for (size_t i = 0; i < cases.n; i++) {
		struct vfm_case *c = cases.v[i];

		if ((c->op != VFM_OP_attn && c->op != VFM_OP_attn_bwd) || !(c->flags & VFM_CASE_TEST) ||
			c->args.attn.q.dtype != VFM_BF16)
			continue;
		if ((sm != 90 && c->op == VFM_OP_attn) || !strstr(c->name, among))
			continue; /* the forward is the same on all devices */
		check_kind(c);
		check(c, &dev);
		n++;
	}
	print_message("%d cases with %zu plans\n", n, dev.attn->n);
	assert_true(n > 10);
	check_backward_plans(dev.attn);
	vfm_cuda_attn_close(dev.attn);
}

static void test_hopper(void **state)
{
	(void)state;
	all(90, false, "cudnn", 0);
}

static void test_packed(void **state)
{
	(void)state;
	all(90, false, "cudnn-packed", 0);
}

static void test_apart(void **state)
{
	(void)state;
	among = "/fixed";
	all(90, false, "cudnn-apart", 0);
	among = "";
}

static void test_ampere(void **state)
{
	(void)state;
	all(80, false, "cudnn", 0);
}

static void test_blackwell(void **state)
{
	(void)state;
	all(100, false, "cudnn", 0);
}

/* RTX 4090 and RTX 5090 */
static void test_geforce(void **state)
{
	(void)state;
	all(89, false, "cudnn", 0);
	all(120, false, "cudnn", 0);
	among = "attn_bwd/packed";
	all(120, true, "cudnn", 0);
	among = "";
}

/* With a limit so low that samples and heads are divided. */
static void test_deterministic(void **state)
{
	(void)state;
	all(90, true, "cudnn", 2 * 128 * 128);
	among = "attn_bwd/packed";
	all(90, true, "cudnn", 0);
	among = "";
}

static int n_warned;
static char warned[512];

static void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void warn(const char *fmt, ...)
{
	va_list ap;

	n_warned++;
	va_start(ap, fmt);
	vsnprintf(warned, sizeof(warned), fmt, ap);
	va_end(ap);
}

/* Without a plan our own kernels compute bf16, with one warning for similar shapes; forcing cuDNN is an error. */
static void test_no_plan(void **state)
{
	struct vfm_cuda dev = device_of(90);
	struct vfm_stream s = {.dev = &dev.dev};
	struct vfm_err err = {0};
	int64_t n = 0;

	(void)state;
	dev.warn = warn;
	n_warned = 0;
	setenv("VFM_CUDA_ATTN", "", 1);
	dnn_ref_no_plans = true;
	for (int again = 0; again < 2; again++)
		for (size_t i = 0; i < cases.n; i++)
			if (strstr(cases.v[i]->name, "/packed-cross/") || strstr(cases.v[i]->name, "/packed-mixed/")) {
				check(cases.v[i], &dev);
				n += cases.v[i]->args.attn.q.dtype == VFM_BF16;
			}
	assert_true(n == 8 && dev.dev.slow_attn == n);
	assert_int_equal(n_warned, 4); /* of two cases, forward and backward */
	if (!strstr(warned, "attn_bwd of bf16, 5 samples, packed, 213 queries x 2 heads, 80 keys x 2 heads, of 40: ") ||
		!strstr(warned, "no engine takes it"))
		fail_msg("%s", warned);
	vfm_cuda_attn_close(dev.attn);
	dev.attn = NULL;
	setenv("VFM_CUDA_ATTN", "cudnn", 1);
	for (size_t i = 0; i < cases.n; i++)
		if (strstr(cases.v[i]->name, "attn/packed-mixed/bf16")) {
			assert_int_equal(vfm_case_alloc(cases.v[i], cpu_s, 1, &err), 0);
			assert_int_equal(vfm_cuda_attn(&s, &cases.v[i]->args.attn, &err), VFM_EENV);
			assert_non_null(strstr(err.msg, "no engine takes it"));
			vfm_case_free(cases.v[i], cpu_s);
		}
	vfm_cuda_attn_close(dev.attn);
	dnn_ref_no_plans = false;
}

/* Refused forms fall to the next one, at a refusal of the plan as of its run, with one warning that has the reason; our
 * own kernels come last. */
static void check_ladder(const char *name, int refuse, bool run, int ran, const char *says)
{
	struct vfm_cuda dev = device_of(90);
	int n = 0;

	dev.warn = warn;
	*(run ? &dnn_ref_refuse_run : &dnn_ref_refuse_build) = refuse;
	setenv("VFM_CUDA_ATTN", "", 1);
	for (int again = 0; again < 2; again++) {
		dnn_ref_ran = n_warned = 0;
		warned[0] = '\0';
		for (size_t i = 0; i < cases.n; i++)
			if (strncmp(cases.v[i]->name, name, strlen(name)) == 0 && strstr(cases.v[i]->name, "/d64")) {
				check(cases.v[i], &dev);
				n++;
				break;
			}
		if (dnn_ref_ran != ran ||
			(again == 0 && (n_warned != (says != NULL) || (says && !strstr(warned, says)))))
			fail_msg("%s without %d: ran %d, %d warnings: %s", name, refuse, dnn_ref_ran, n_warned, warned);
		assert_int_equal(again ? n_warned : 0, 0);
	}
	assert_int_equal(n, 2);
	assert_int_equal(dev.dev.slow_attn, ran ? 0 : 2);
	vfm_cuda_attn_close(dev.attn);
	dnn_ref_refuse_build = dnn_ref_refuse_run = 0;
}

static void test_ladder(void **state)
{
	static const char fixed[] = "fixed/bf16", packed[] = "packed-mixed/bf16";
	const int two = DNN_REF_PLAIN | DNN_REF_APART, four = two | DNN_REF_PACKED | DNN_REF_PACKED_APART;
	char name[80];

	(void)state;
	for (int run = 0; run < 2; run++) {
		for (int bwd = 0; bwd < 2; bwd++) {
			snprintf(name, sizeof(name), "%s/%s", bwd ? "attn_bwd" : "attn", fixed);
			check_ladder(name, 0, run, DNN_REF_PLAIN, NULL);
			check_ladder(name, DNN_REF_PLAIN, run, DNN_REF_APART,
				run ? "computed by cuDNN in another form: lse by samples (plain: no run of form 1)"
				    : "computed by cuDNN in another form: lse by samples (plain: no engine for form "
				      "1)");
			check_ladder(name, two, run, DNN_REF_PACKED, "in another form: packed (plain: ");
			check_ladder(
				name, two | DNN_REF_PACKED, run, DNN_REF_PACKED_APART, "form: packed, lse by samples");
			snprintf(name, sizeof(name), "%s/%s", bwd ? "attn_bwd" : "attn", packed);
			check_ladder(name, DNN_REF_PACKED, run, DNN_REF_PACKED_APART, "form: lse by samples (plain: ");
		}
		snprintf(name, sizeof(name), "attn/%s", fixed);
		check_ladder(name, four, run, DNN_REF_UNIFIED, "form: one operation");
		snprintf(name, sizeof(name), "attn/%s", packed);
		check_ladder(name, four, run, DNN_REF_UNIFIED, "form: one operation");
		snprintf(name, sizeof(name), "attn_bwd/%s", fixed);
		check_ladder(name, four, run, 0, "by our own kernels, which are slow (plain: ");
		snprintf(name, sizeof(name), "attn/%s", fixed);
		check_ladder(name, DNN_REF_FORMS, run, 0, "by our own kernels, which are slow (plain: ");
	}
}

/* ---- the first run of a plan ---- */

/* Returns the first bf16 case whose name begins with `name` and contains `with`. */
static struct vfm_case *case_of(const char *name, const char *with)
{
	for (size_t i = 0; i < cases.n; i++)
		if (strncmp(cases.v[i]->name, name, strlen(name)) == 0 && strstr(cases.v[i]->name, with))
			return cases.v[i];
	fail_msg("no case %s", name);
	return NULL;
}

/* Forms with this error run, are found out once, and are replaced by `ran`, 0: our own kernels. */
static void check_error(struct vfm_case *c, enum dnn_ref_error error, int forms_wrong, int ran, const char *says)
{
	struct vfm_cuda dev = device_of(90);
	int before = 0;

	dev.warn = warn;
	dnn_ref_error = error, dnn_ref_wrong = forms_wrong;
	setenv("VFM_CUDA_ATTN", "", 1);
	for (int again = 0; again < 2; again++) {
		dnn_ref_ran = n_warned = 0;
		check(c, &dev);
		if (again ? dnn_ref_ran != ran || n_warned
			  : !(dnn_ref_ran & forms_wrong) || n_warned != 1 || !strstr(warned, says))
			fail_msg("%s, error %d, run %d: ran %d, %d warnings: %s", c->name, error, again, dnn_ref_ran,
				n_warned, warned);
		if (again == 0)
			before = (int)dev.dev.tuned;
	}
	assert_int_equal(before, ran ? 1 : 0); /* a plan that agrees */
	assert_int_equal(dev.dev.tuned, before);
	assert_int_equal(dev.dev.slow_attn, ran ? 0 : 2);
	vfm_cuda_attn_close(dev.attn);
	dnn_ref_error = dnn_ref_wrong = 0;
}

static void test_wrong_results(void **state)
{
	const int rows = DNN_REF_PLAIN | DNN_REF_PACKED, packed = DNN_REF_PACKED | DNN_REF_PACKED_APART;
	static const struct {
		const char *name, *with;
		int apart;
	} fwd[] = {
		{"attn/fixed/bf16", "h2-2", DNN_REF_APART},
		{"attn/fixed/bf16", "h2-1", DNN_REF_APART},
		{"attn/packed-mixed/bf16", "", DNN_REF_PACKED_APART},
		{"attn/packed-gqa/bf16", "", DNN_REF_PACKED_APART},
		{"attn/packed-cross/bf16", "", DNN_REF_PACKED_APART}, /* with a sample that has no keys */
		{"attn/packed/bf16", "h4-2", DNN_REF_PACKED_APART},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(fwd) / sizeof(fwd[0]); i++) {
		struct vfm_case *c = case_of(fwd[i].name, fwd[i].with);

		check_error(c, DNN_REF_BASE2, rows, fwd[i].apart, "plain: lse differs from that of our own kernels");
		check_error(c, DNN_REF_SWAPPED, rows, fwd[i].apart, "plain: lse differs");
		check_error(c, DNN_REF_LAST_ROW, rows, fwd[i].apart, "plain: o differs");
		check_error(c, DNN_REF_LAST_ROW, DNN_REF_FORMS, 0, "our own kernels, which are slow (plain: o differs");
	}
	check_error(case_of("attn_bwd/fixed/bf16", "h2-2"), DNN_REF_LAST_ROW, rows, DNN_REF_APART, "plain: dq differs");
	check_error(case_of("attn_bwd/fixed/bf16", "h2-2"), DNN_REF_TWICE, rows, DNN_REF_APART, "plain: dk differs");
	check_error(case_of("attn_bwd/packed-mixed/bf16", ""), DNN_REF_TWICE, DNN_REF_PACKED, DNN_REF_PACKED_APART,
		"plain: dk differs");
	check_error(
		case_of("attn_bwd/packed/bf16", "h4-2"), DNN_REF_LAST_ROW, packed, 0, "own kernels, which are slow");
	check_error(case_of("attn_bwd/packed-cross/bf16", ""), DNN_REF_LAST_ROW, packed, 0, "plain: dk differs");
	check_error(case_of("attn_bwd/packed-ring/bf16", ""), DNN_REF_LAST_ROW, packed, 0, "plain: ");
}

/* Runs a case on a device, whose result is not compared. */
static int run_case(struct vfm_case *c, struct vfm_cuda *dev, bool zero_dout, struct vfm_err *err)
{
	struct vfm_stream s = {.dev = &dev->dev};
	int rc;

	assert_int_equal(vfm_case_alloc(c, cpu_s, 1, err), 0);
	if (zero_dout)
		memset(c->args.attn_bwd.dout.data, 0, vfm_tensor_extent(&c->args.attn_bwd.dout));
	rc = c->op == VFM_OP_attn ? vfm_cuda_attn(&s, &c->args.attn, err)
				  : vfm_cuda_attn_bwd(&s, &c->args.attn_bwd, err);
	vfm_case_free(c, cpu_s);
	return rc;
}

/* If cuDNN is forced, a wrong result is an error. */
static void test_wrong_forced(void **state)
{
	struct vfm_cuda dev = device_of(90);
	struct vfm_err err = {0};

	(void)state;
	setenv("VFM_CUDA_ATTN", "cudnn", 1);
	dnn_ref_error = DNN_REF_BASE2, dnn_ref_wrong = DNN_REF_FORMS;
	for (int again = 0; again < 2; again++) {
		assert_int_equal(run_case(case_of("attn/fixed/bf16", ""), &dev, false, &err), VFM_EENV);
		assert_non_null(strstr(err.msg, "attn: plain: lse differs"));
	}
	vfm_cuda_attn_close(dev.attn);
	dnn_ref_error = dnn_ref_wrong = 0;
}

/* Gradients of zero prove nothing: the plan is compared at a later run.  A capture may contain it, because it has run. */
static void test_zero_gradients(void **state)
{
	struct vfm_case *c = case_of("attn_bwd/fixed/bf16", "h2-2");
	struct vfm_cuda dev = device_of(90);
	struct vfm_err err = {0};

	(void)state;
	dev.warn = warn;
	n_warned = 0;
	setenv("VFM_CUDA_ATTN", "", 1);
	dnn_ref_error = DNN_REF_LAST_ROW, dnn_ref_wrong = DNN_REF_PLAIN;
	dnn_ref_ran = 0;
	assert_int_equal(run_case(c, &dev, true, &err), 0);
	assert_true(n_warned == 0 && dev.dev.tuned == 0);
	capturing = true;
	assert_int_equal(run_case(c, &dev, true, &err), 0);
	capturing = false;
	assert_true(n_warned == 0 && dnn_ref_ran == DNN_REF_PLAIN);
	check(c, &dev);
	assert_true(n_warned == 1 && dev.dev.tuned == 1);
	dnn_ref_ran = 0;
	capturing = true;
	assert_int_equal(run_case(c, &dev, false, &err), 0);
	capturing = false;
	assert_int_equal(dnn_ref_ran, DNN_REF_APART);
	vfm_cuda_attn_close(dev.attn);
	dnn_ref_error = dnn_ref_wrong = 0;
}

/* With one key for each sample, dq and dk are nothing but rounding: they are not compared, but dv is. */
static void test_one_key(void **state)
{
	static const int len_q[] = {64, 70}, one[] = {1, 1};
	struct vfm_cuda dev = device_of(90);
	struct vfm_stream s = {.dev = &dev.dev};
	struct vfm_err err = {0};
	struct vfm_cases l = {0};
	struct vfm_attn_bwd *a;
	struct vfm_attn f;

	(void)state;
	dev.warn = warn;
	n_warned = 0;
	setenv("VFM_CUDA_ATTN", "", 1);
	vfm_case_attn(&l, VFM_CASE_TEST, "one-key", VFM_BF16, VFM_F32, 2, len_q, one, 2, 2, 64);
	assert_int_equal(vfm_case_alloc(l.v[1], cpu_s, 1, &err), 0);
	a = &l.v[1]->args.attn_bwd;
	f = (struct vfm_attn){.q = a->q,
		.k = a->k,
		.v = a->v,
		.o = a->o,
		.lse = a->lse,
		.seqs_q = a->seqs_q,
		.seqs_k = a->seqs_k,
		.scale = a->scale};
	assert_int_equal(vfm_op_attn(cpu_s, &f, &err), 0);
	assert_int_equal(vfm_cuda_attn_bwd(&s, a, &err), 0);
	if (n_warned)
		fail_msg("%s", warned);
	assert_int_equal(dev.dev.tuned, 1);
	capturing = true; /* the plan is checked */
	assert_int_equal(vfm_cuda_attn_bwd(&s, a, &err), 0);
	capturing = false;
	vfm_case_free(l.v[1], cpu_s);
	vfm_cuda_attn_close(dev.attn);
	vfm_cases_release(&l);
}

/* A device that is opened again finds its plans; another one, or with other settings, does not. */
static void test_opened_again(void **state)
{
	struct vfm_case *c = case_of("attn/fixed/bf16", ""), *b = case_of("attn_bwd/packed-mixed/bf16", "");
	struct vfm_cuda first = device_of(90), dev, two[2];
	struct vfm_err err = {0};
	int built = dnn_ref_built;

	(void)state;
	setenv("VFM_CUDA_ATTN", "", 1);
	for (int open = 0; open < 3; open++) {
		dev = first;
		check(c, &dev);
		check(b, &dev);
		vfm_cuda_attn_close(dev.attn);
		assert_int_equal(dnn_ref_built, built + 2);
		assert_int_equal(dev.dev.tuned, open == 0 ? 2 : 0);
	}
	dev = first;
	dev.deterministic = true;
	check(c, &dev);
	vfm_cuda_attn_close(dev.attn);
	assert_int_equal(dnn_ref_built, built + 3);
	setenv("VFM_CUDA_ATTN", "cudnn-apart", 1);
	dev = first;
	check(c, &dev);
	vfm_cuda_attn_close(dev.attn);
	assert_int_equal(dnn_ref_built, built + 4);
	setenv("VFM_CUDA_ATTN", "", 1);
	for (int i = 0; i < 2; i++) { /* two ranks that share a device do not share a handle */
		two[i] = first;
		assert_int_equal(run_case(c, &two[i], false, &err), 0);
	}
	assert_ptr_not_equal(two[0].attn, two[1].attn);
	assert_int_equal(dnn_ref_built, built + 5);
	vfm_cuda_attn_close(two[0].attn);
	vfm_cuda_attn_close(two[1].attn);
	dev = device_of(90);
	check(c, &dev);
	vfm_cuda_attn_close(dev.attn);
	assert_int_equal(dnn_ref_built, built + 6);
}

/* Runs a case on a new device where plan i takes us[i]; returns the plan that the second call uses. */
static int plan_used(const char *name, const int us[DNN_REF_PLANS], double tune_flops, bool deterministic)
{
	struct vfm_cuda dev = device_of(90);
	struct vfm_stream s = {.dev = &dev.dev};
	struct vfm_err err = {0};

	dev.deterministic = deterministic;
	assert_non_null(attn_context(&s, &err));
	dev.attn->tune_flops = tune_flops;
	dnn_ref_plans = DNN_REF_PLANS;
	dnn_ref_ran = 0;
	memcpy(dnn_ref_us, us, sizeof(dnn_ref_us));
	check(case_of(name, ""), &dev);
	check(case_of(name, ""), &dev);
	assert_true((dev.dev.tuned > 0) == !no_memory);
	vfm_cuda_attn_close(dev.attn);
	dnn_ref_plans = 1;
	memset(dnn_ref_us, 0, sizeof(dnn_ref_us));
	return dnn_ref_used;
}

static void test_fastest_plan(void **state)
{
	static const int second[] = {60000, 2000, 90000, 60000}, first[] = {2000, 60000, 60000, 60000},
			 refused[] = {-1, 60000, 2000, -1};
	static const char *const names[] = {"attn/fixed/bf16", "attn_bwd/packed-equal/bf16"};

	(void)state;
	setenv("VFM_CUDA_ATTN", "", 1);
	for (int i = 0; i < 2; i++) {
		const char *name = names[i];

		assert_int_equal(plan_used(name, second, 0, false), 1);
		assert_int_equal(plan_used(name, first, 0, false), 0);
		assert_int_equal(plan_used(name, refused, 0, false), 2);
		assert_int_equal(plan_used(name, second, 1e30, false), 0); /* too small an op */
		assert_int_equal(plan_used(name, second, 0, true), 0);
	}
	/* the fastest is wrong: the first one takes its place, and its result counts */
	dnn_ref_error = DNN_REF_LAST_ROW, dnn_ref_wrong = DNN_REF_FORMS, dnn_ref_wrong_plan = 1;
	assert_int_equal(plan_used(names[0], second, 0, false), 0);
	assert_int_equal(dnn_ref_ran, DNN_REF_PLAIN);
	dnn_ref_error = dnn_ref_wrong = 0, dnn_ref_wrong_plan = -1;
	no_memory = true; /* nothing can be timed or compared */
	assert_int_equal(plan_used(names[0], second, 0, false), 0);
	no_memory = false;
	setenv("VFM_CUDA_TUNE", "0", 1);
	assert_int_equal(plan_used(names[0], second, 0, false), 0);
	unsetenv("VFM_CUDA_TUNE");
}

/* ---- pieces ---- */

static void test_rounding(void **state)
{
	(void)state;
	assert_int_equal(vfm_attn_round_len(1), 128);
	assert_int_equal(vfm_attn_round_len(128), 128);
	assert_int_equal(vfm_attn_round_len(129), 256);
	assert_int_equal(vfm_attn_round_len(1024), 1024);
	assert_int_equal(vfm_attn_round_len(1025), 1280);
	assert_int_equal(vfm_attn_round_len(65536), 65536);
	assert_int_equal(vfm_attn_round_len(65537), 81920);
	assert_int_equal(vfm_attn_round_batch(1), 1);
	assert_int_equal(vfm_attn_round_batch(5), 8);
	for (int64_t n = 1; n < 200000; n += 7) {
		int64_t r = vfm_attn_round_len(n);

		assert_true(r >= n && r % 128 == 0 && (r == 128 || r <= n + n / 4 + 128) && vfm_attn_round_len(r) == r);
	}
}

/* Every sample with queries and keys is in one piece for each head, and fits it. */
static void test_pieces(void **state)
{
	struct vfm_rng rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);
	int32_t cq[301] = {0}, ck[301] = {0};
	int n_fixed = 0;

	(void)state;
	for (int round = 0; round < 200; round++) {
		int n = 1 + (int)(300 * vfm_rng_uniform(&rng, (uint64_t)round * 1000)), seen[300] = {0}, count;
		struct vfm_attn_limits lim = {.hkv = 1 + round % 5,
			.group = 1 + round % 3,
			.pairs = round % 4 ? 0 : 1 << (16 + round % 12),
			.rows = round % 3 ? 0 : 4096};
		struct vfm_seqs q = {.n = n, .cu = cq}, k = {.n = n, .cu = ck};
		struct vfm_attn_piece *v;
		bool equal = round % 7 > 4;

		for (int i = 0; i < n; i++) {
			double u = vfm_rng_uniform(&rng, (uint64_t)(round * 1000 + i * 2 + 1));
			double w = vfm_rng_uniform(&rng, (uint64_t)(round * 1000 + i * 2 + 2));

			cq[i + 1] = cq[i] + (equal ? 512 : u < 0.1 ? 0 : (int32_t)exp(9 * w));
			ck[i + 1] = ck[i] + (equal ? 128 : u > 0.9 ? 0 : (int32_t)exp(7 * w * u));
		}
		count = vfm_attn_pieces(&q, &k, &lim, &v);
		for (int p = 0; p < count; p++) {
			int in = 0;

			n_fixed += v[p].kind == VFM_ATTN_FIXED;
			assert_true(v[p].kind == VFM_ATTN_PACKED ||
				(count == 1 && v[p].b == n && cq[n] == n * v[p].sq && ck[n] == n * v[p].sk));
			assert_true(
				v[p].n > 0 && v[p].n <= v[p].b && v[p].heads > 0 && v[p].head + v[p].heads <= lim.hkv);
			assert_true(!lim.rows || v[p].b == 1 || v[p].b * v[p].sq <= lim.rows ||
				v[p].kind != VFM_ATTN_PACKED);
			if (lim.pairs && (v[p].b > 1 || v[p].heads > 1))
				assert_true(v[p].b * v[p].heads * lim.group * v[p].sq * v[p].sk <= lim.pairs);
			for (int i = 0; i < n; i++) {
				int64_t nq = vfm_seqs_len(&q, i), nk = vfm_seqs_len(&k, i);

				if (v[p].kind == VFM_ATTN_PACKED && (nq <= v[p].lo || nq > v[p].hi || nk == 0))
					continue;
				if (in >= v[p].first && in < v[p].first + v[p].n) {
					assert_true(nq <= v[p].sq && nk <= v[p].sk);
					seen[i] += (int)v[p].heads;
				}
				in++;
			}
		}
		for (int i = 0; i < n; i++)
			if (count != 1 || v[0].kind == VFM_ATTN_PACKED)
				assert_int_equal(seen[i], vfm_seqs_len(&q, i) && vfm_seqs_len(&k, i) ? lim.hkv : 0);
		free(v);
	}
	assert_true(n_fixed > 0);
}

/* Images of 256 tokens need no padding for four numbers of samples an octave. */
static void test_images(void **state)
{
	static const struct {
		int n;
		bool fixed;
	} packs[] = {{1, true}, {7, true}, {8, true}, {9, false}, {12, true}, {13, false}, {192, true}, {200, false},
		{224, true}, {256, true}};
	struct vfm_attn_limits lim = {.hkv = 16, .group = 1};
	int32_t cu[257];

	(void)state;
	for (int i = 0; i <= 256; i++)
		cu[i] = 256 * i;
	for (size_t i = 0; i < sizeof(packs) / sizeof(packs[0]); i++) {
		struct vfm_seqs q = {.n = packs[i].n, .total = 256 * packs[i].n, .cu = cu};
		struct vfm_attn_piece *v;

		assert_int_equal(vfm_attn_pieces(&q, &q, &lim, &v), 1);
		assert_int_equal(v[0].kind == VFM_ATTN_FIXED, packs[i].fixed);
		assert_true(!packs[i].fixed || (v[0].b == packs[i].n && v[0].sq == 256 && v[0].sk == 256));
		free(v);
	}
}

/* Packs with different samples share few plans, which is the purpose of rounding. */
static void test_few_shapes(void **state)
{
	struct vfm_rng rng = vfm_rng_stream(5, 2, 3, VFM_RNG_TEST);
	struct vfm_attn_limits lim = {.hkv = 8, .group = 1};
	int64_t shapes[256][3];
	int n_shapes = 0;

	(void)state;
	for (int round = 0; round < 1000; round++) {
		int32_t cu[200] = {0};
		int n = 0, count;
		struct vfm_attn_piece *v;
		struct vfm_seqs q;

		while (n < 199) { /* a pack of 64k tokens of clips of 1k to 16k */
			int32_t len = (int32_t)(1024 * exp(2.77 * vfm_rng_uniform(&rng, (uint64_t)(round * 1000 + n))));

			if (cu[n] + len > 65536)
				break;
			cu[n + 1] = cu[n] + len;
			n++;
		}
		q = (struct vfm_seqs){.n = n, .cu = cu};
		count = vfm_attn_pieces(&q, &q, &lim, &v);
		for (int p = 0; p < count; p++) {
			int i = 0;

			while (i < n_shapes &&
				(shapes[i][0] != v[p].b || shapes[i][1] != v[p].sq || shapes[i][2] != v[p].sk))
				i++;
			if (i == n_shapes) {
				assert_true(n_shapes < 256);
				shapes[n_shapes][0] = v[p].b, shapes[n_shapes][1] = v[p].sq,
				shapes[n_shapes++][2] = v[p].sk;
			}
		}
		free(v);
	}
	print_message("1000 packs: %d shapes\n", n_shapes);
	assert_true(n_shapes <= 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rounding),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_images),
		cmocka_unit_test(test_few_shapes),
		cmocka_unit_test(test_hopper),
		cmocka_unit_test(test_packed),
		cmocka_unit_test(test_apart),
		cmocka_unit_test(test_ampere),
		cmocka_unit_test(test_blackwell),
		cmocka_unit_test(test_geforce),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_no_plan),
		cmocka_unit_test(test_ladder),
		cmocka_unit_test(test_wrong_results),
		cmocka_unit_test(test_wrong_forced),
		cmocka_unit_test(test_zero_gradients),
		cmocka_unit_test(test_one_key),
		cmocka_unit_test(test_opened_again),
		cmocka_unit_test(test_fastest_plan),
	};

	if (getenv("VFM_TEST_ONLY"))
		cmocka_set_test_filter(getenv("VFM_TEST_ONLY"));
	return cmocka_run_group_tests(tests, start, end);
}
