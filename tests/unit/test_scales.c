/* Delayed scaling of fp8: which scale a tensor gets from which steps, on one rank through the tape; and that histories
 * do not depend on the layout. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/philox.h"
#include "device/open/open.h"
#include "net/nn/layers.h"
#include "net/nn/scales.h"
#include "ranks.h"

enum { WINDOW = 4, IN = 32, OUT = 48, ROWS = 7, LAYERS = 6 };

static void declare(struct vfm_linear *l, struct vfm_params *ps, int i, bool fp8)
{
	struct vfm_linear_desc d = {.unit = i, .in = IN, .out = OUT, .split = VFM_SPLIT_COLUMN, .fp8 = fp8};

	vfm_linear_declare(l, ps, &d, "blocks.%d.fc", i);
}

static const float *past_of(const struct vfm_linear *l, int k)
{
	return l->w->past->history[k].data;
}

/* ---- one layer ---- */

struct layer {
	struct vfm_device dev;
	struct vfm_params ps;
	struct vfm_linear l;
	struct vfm_tape *t;
	float x[ROWS * IN], y[ROWS * OUT], dy[ROWS * OUT], dx[ROWS * IN];
};

static void layer_open(struct layer *o, bool delayed)
{
	float *w = vfm_calloc((size_t)OUT * IN, sizeof(*w));

	OK(vfm_device_open(&o->dev, "cpu", &err));
	vfm_params_init(&o->ps, o->dev.stream, vfm_mesh_one());
	o->ps.fp8 = true;
	declare(&o->l, &o->ps, 0, true);
	OK(vfm_params_alloc(&o->ps, VFM_BF16, true, &err));
	if (delayed)
		OK(vfm_scales_new(&o->ps, WINDOW, &err));
	for (int i = 0; i < OUT * IN; i++)
		w[i] = (float)contribution(0, 0, 0, "w", i);
	OK(vfm_param_put(&o->ps, NULL, o->l.w, w + vfm_param_owned(&o->ps, o->l.w).a, &err));
	OK(vfm_params_refresh(&o->ps, &err));
	o->t = vfm_tape_new(o->dev.stream);
	free(w);
}

static void layer_close(struct layer *o)
{
	vfm_tape_free(o->t);
	vfm_params_release(&o->ps);
	assert_int_equal(o->dev.dev->mem_now, 0);
	vfm_device_close(&o->dev);
}

/* A pack: x of the largest size x_max and dy of dy_max, or with one such element that is not finite; y and dx are left
 * in o. */
static void pack(struct layer *o, double x_max, double dy_max)
{
	uint16_t x[ROWS * IN], dy[ROWS * OUT];
	struct vfm_var *vx, *y;
	struct vfm_tensor g;

	for (int i = 0; i < ROWS * IN; i++)
		x[i] = vfm_f32_to_bf16(i == 40
				? (float)-x_max
				: (float)((isfinite(x_max) ? x_max : 1) * contribution(0, 1, 0, "x", i)));
	for (int i = 0; i < ROWS * OUT; i++)
		dy[i] = vfm_f32_to_bf16(i == 50
				? (float)dy_max
				: (float)((isfinite(dy_max) ? dy_max : 1) * contribution(0, 1, 0, "dy", i)));
	vx = vfm_leaf(o->t, vfm_t2(x, VFM_BF16, ROWS, IN));
	y = vfm_linear(o->t, &o->l, vx, VFM_ACT_NONE, VFM_BF16);
	OK(vfm_tape_status(o->t, &err));
	OK(vfm_tape_seed(o->t, y, vfm_t2(dy, VFM_BF16, ROWS, OUT), &err));
	for (int i = 0; i < ROWS * OUT; i++)
		o->y[i] = (float)value_at(&y->v, i);
	OK(vfm_tape_backward(o->t, &err));
	g = vfm_leaf_grad(vx);
	for (int i = 0; i < ROWS * IN; i++)
		o->dx[i] = (float)value_at(&g, i);
	vfm_tape_reset(o->t);
}

static void step(struct layer *o, int packs, const double (*max)[2])
{
	OK(vfm_params_grad_begin(&o->ps, &err));
	for (int i = 0; i < packs; i++)
		pack(o, max[i][0], max[i][1]);
	OK(vfm_params_grad_end(&o->ps, &err));
	OK(vfm_scales_step(&o->ps, (struct vfm_tensor){0}, &err));
}

#define STEP(o, ...) step(o, (int)(sizeof((double[][2]){__VA_ARGS__}) / sizeof(double[2])), (double[][2]){__VA_ARGS__})

static void history_is(const struct layer *o, int k, double a, double b, double c, double d)
{
	const double want[WINDOW] = {a, b, c, d};

	for (int i = 0; i < WINDOW; i++)
		if ((double)past_of(&o->l, k)[i] != want[i])
			fail_msg("tensor %d, place %d: %g instead of %g", k, i, (double)past_of(&o->l, k)[i], want[i]);
}

/* Each step leaves its largest elements, over all packs; old ones leave. */
static void test_window(void **state)
{
	static struct layer o;
	double w = 0;

	(void)state;
	layer_open(&o, true);
	for (int i = 0; i < OUT * IN; i++)
		w = fmax(w, fabs(value_at(&o.l.w->var.v, i)));
	history_is(&o, VFM_FP8_X, 0, 0, 0, 0);
	STEP(&o, {2, 0.5});
	history_is(&o, VFM_FP8_X, 0, 0, 0, 2);
	history_is(&o, VFM_FP8_W, 0, 0, 0, w);
	history_is(&o, VFM_FP8_DY, 0, 0, 0, 0.5);
	STEP(&o, {3, 0.25}, {8, 0.125}, {1, 4});
	history_is(&o, VFM_FP8_X, 0, 0, 2, 8);
	history_is(&o, VFM_FP8_DY, 0, 0, 0.5, 4);
	STEP(&o, {1, 1});
	STEP(&o, {0, 0});                    /* nothing but zeros */
	STEP(&o, {INFINITY, NAN}, {1.5, 2}); /* what is not finite does not count */
	history_is(&o, VFM_FP8_X, 8, 1, 0, 1.5);
	history_is(&o, VFM_FP8_W, w, w, w, w);
	history_is(&o, VFM_FP8_DY, 4, 1, 0, 2);
	STEP(&o, {1, 1});
	history_is(&o, VFM_FP8_X, 1, 0, 1.5, 1); /* 8 is forgotten */
	layer_close(&o);
}

static bool same(const struct layer *a, const struct layer *b)
{
	return !memcmp(a->y, b->y, sizeof(a->y)) && !memcmp(a->dx, b->dx, sizeof(a->dx));
}

/* Two layers, one of which scales each tensor by itself: where histories are empty, or say the same, they have the same
 * bits. */
static void test_scale(void **state)
{
	static struct layer d, c;
	double most = 0;

	(void)state;
	layer_open(&d, true);
	layer_open(&c, false);
	/* the second pack of the first step, too, is by itself: the first one's elements are not its */
	for (int i = 0; i < 2; i++) {
		pack(&d, i ? 100 : 3, i ? 1 : 1e-4);
		pack(&c, i ? 100 : 3, i ? 1 : 1e-4);
		assert_true(same(&d, &c));
	}
	OK(vfm_scales_step(&d.ps, (struct vfm_tensor){0}, &err));
	pack(&d, 100, 1);
	pack(&c, 100, 1);
	assert_true(same(&d, &c));
	/* by the history: what is small against it is coarse */
	pack(&d, 0.05, 1);
	pack(&c, 0.05, 1);
	assert_true(memcmp(d.y, c.y, sizeof(d.y)) != 0);
	assert_true(!memcmp(d.dx, c.dx, sizeof(d.dx)));
	/* what is larger saturates: at most 448 / scale = 448 / 4 of 1000 is left */
	pack(&d, 1000, 1);
	pack(&c, 1000, 1);
	for (int i = 0; i < OUT; i++) /* of row 1, in which the largest element is */
		most = fmax(most, fabs((double)(d.y[OUT + i] - c.y[OUT + i])));
	assert_true(most > 100 && isfinite(most));
	/* the element that was taken on the way there scales the next step */
	OK(vfm_scales_step(&d.ps, (struct vfm_tensor){0}, &err));
	assert_true(past_of(&d.l, VFM_FP8_X)[WINDOW - 1] == 1000);
	pack(&d, 1000, 1);
	assert_true(same(&d, &c));
	/* NaN comes out again */
	pack(&d, NAN, 1);
	assert_true(isnan(d.y[OUT]) && !isnan(d.y[0]));
	layer_close(&d);
	layer_close(&c);
}

/* ---- ranks ---- */

/* What rank r saw at most of a layer's tensor in a step. */
static float seen(int r, int step, int layer, int k)
{
	char name[16];

	snprintf(name, sizeof(name), "%d", layer);
	return (float)fabs(contribution(r, step, k, name, 0));
}

/* All ranks of a stage have the largest of what any of them saw. */
static int histories(struct vfm_launch *l, const void *arg)
{
	const struct layout *lay = arg;
	struct vfm_linear layer[LAYERS];
	struct vfm_params ps;
	struct vfm_device d;
	struct vfm_comm *world;
	struct vfm_mesh m;
	int per, inner, n = 0;

	OK(vfm_comm_host_new(l, &(struct vfm_host_comm_opts){.timeout_s = 20}, &world, &err));
	OK(vfm_device_open(&d, "cpu", &err));
	OK(vfm_mesh_init(&m, &lay->p, world, d.dev, &err));
	vfm_params_init(&ps, d.stream, &m);
	per = LAYERS / m.size[VFM_AX_PP];
	inner = m.world_size / m.size[VFM_AX_PP];
	for (int i = 0; i < LAYERS; i++) /* stages have different numbers of them; the last stage may have none */
		if (i / per == m.coord[VFM_AX_PP])
			declare(&layer[i], &ps, i, i < LAYERS - 2);
	OK(vfm_params_alloc(&ps, VFM_BF16, true, &err));
	OK(vfm_scales_new(&ps, WINDOW, &err));
	for (int s = 0; s < 6; s++) {
		for (int i = 0; i < LAYERS - 2; i++)
			for (int k = 0; i / per == m.coord[VFM_AX_PP] && k < VFM_FP8_TENSORS; k++)
				*(float *)layer[i].w->past->amax[k].data = seen(m.rank % inner, s, i, k);
		OK(vfm_scales_step(&ps, (struct vfm_tensor){0}, &err));
	}
	for (int i = 0; i < LAYERS; i++) {
		if (i / per != m.coord[VFM_AX_PP])
			continue;
		if (i >= LAYERS - 2) {
			MUST(!layer[i].w->past, "layer %d is in fp8", i);
			continue;
		}
		n++;
		for (int k = 0; k < VFM_FP8_TENSORS; k++)
			for (int s = 2; s < 6; s++) {
				float want = 0;

				for (int r = 0; r < inner; r++)
					want = fmaxf(want, seen(r, s, i, k));
				MUST(past_of(&layer[i], k)[s - 2] == want,
					"%s, rank %d: layer %d, tensor %d, step %d: %g instead of %g", lay->name,
					m.rank, i, k, s, (double)past_of(&layer[i], k)[s - 2], (double)want);
			}
	}
	MUST(ps.scales->n == n && ps.scales->writes == (m.rank % inner == 0), "%s, rank %d: %lld layers", lay->name,
		m.rank, (long long)ps.scales->n);
	vfm_params_release(&ps);
	vfm_mesh_release(&m);
	vfm_device_close(&d);
	vfm_comm_free(world);
	vfm_launch_end(l);
	return 0;
}

static void test_ranks(void **state)
{
	static const struct layout lay[] = {
		{"one", P(1, 1, 1, 1, 1, 1, 1), VFM_F32},
		{"tp2 cp2", P(2, 2, 1, 1, 1, 1, 1), VFM_F32},
		{"dp2 pp3", P(1, 1, 3, 2, 1, 1, 1), VFM_F32},
		{"tp2 dp2 pp2", P(2, 1, 2, 2, 1, 1, 1), VFM_F32},
		{"fsdp4", P(1, 1, 1, 4, 1, 1, 4, .fsdp = true), VFM_F32},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lay) / sizeof(lay[0]); i++)
		in_ranks(&lay[i], histories);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_window),
		cmocka_unit_test(test_scale),
		cmocka_unit_test(test_ranks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
