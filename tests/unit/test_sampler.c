/* The samplers against closed solutions, in float64.
 *
 * A network whose last layer has no weights returns its bias: F = b, whatever x is.  Then
 *   edm    dx/dsigma = x sigma/s^2 - b sd/s with s^2 = sigma^2 + sd^2, solved by
 *          x(sigma) = s (x1/s1 + b (atan(sigma1/sd) - atan(sigma/sd)))
 *   flow   dx/dt = b, so that x(0) = x(1) - b in any number of steps
 * A network with weights is used where the answer is an identity: guidance, packs.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/philox.h"
#include "device/open/open.h"
#include "net/diffusion/sampler.h"
#include "ok.h"

enum { MAX_N = 4, TEXT_DIM = 8, F = 16, MAX_TOKENS = 256 };

struct net {
	struct vfm_device d;
	struct vfm_model_spec m;
	struct vfm_params ps;
	struct vfm_model *net;
};

static double bias(int64_t f)
{
	return f == 0 ? 0 : 0.7 * sin((double)f);
}

/* Every parameter random; or, for a known answer, the weights of the last layer 0. */
static void net_open(struct net *n, bool known)
{
	OK(vfm_device_open(&n->d, "cpu", &err));
	vfm_model_defaults(&n->m);
	n->m.layers = 2;
	n->m.hidden = 32;
	n->m.heads = 2;
	n->m.channels = 4;
	n->m.text_dim = TEXT_DIM;
	OK(vfm_model_check(&n->m, &err));
	assert_int_equal(vfm_model_patch_dim(&n->m), F);
	vfm_params_init(&n->ps, n->d.stream, vfm_mesh_one());
	n->net = vfm_model_new(&n->m, &n->ps);
	OK(vfm_params_alloc(&n->ps, VFM_F32, false, &err));
	for (size_t i = 0; i < n->ps.n; i++) {
		struct vfm_param *p = n->ps.p[i];
		struct vfm_rng rng = vfm_rng_stream(1, 0, i, VFM_RNG_TEST);
		float *v = vfm_calloc((size_t)p->n, sizeof(*v));
		bool last = !strncmp(p->name, "out.", 4);

		for (int64_t k = 0; k < p->n; k++) {
			double z = vfm_rng_normal(&rng, (uint64_t)k);

			v[k] = (float)(p->init == VFM_INIT_ONE ? 1 + 0.1 * z : 0.2 * z);
			if (known && last)
				v[k] = (float)(p->d.ndim > 1 ? 0 : bias(k));
		}
		OK(vfm_param_put(&n->ps, NULL, p, v + vfm_param_owned(&n->ps, p).a, &err));
		free(v);
	}
	OK(vfm_params_refresh(&n->ps, &err));
}

static void net_close(struct net *n)
{
	vfm_model_free(n->net);
	vfm_params_release(&n->ps);
	vfm_device_close(&n->d);
}

/* Prompt i: grid (1 + i % 2) x 2 x (2 + i), i + 1 rows of text. */
struct prompts {
	int n;
	uint64_t id[MAX_N];
	int32_t grid[MAX_N][3], cu_text[MAX_N + 1];
	float text[16 * TEXT_DIM];
	int64_t first[MAX_N + 1]; /* token */
};

static void add_prompt(struct prompts *p, int i)
{
	int32_t row = p->cu_text[p->n];
	struct vfm_rng rng = vfm_rng_stream(2, 0, (uint64_t)i, VFM_RNG_TEST);

	p->id[p->n] = (uint64_t)i;
	p->grid[p->n][0] = 1 + i % 2;
	p->grid[p->n][1] = 2;
	p->grid[p->n][2] = 2 + i;
	for (int k = 0; k < (i + 1) * TEXT_DIM; k++)
		p->text[row * TEXT_DIM + k] = (float)vfm_rng_normal(&rng, (uint64_t)k);
	p->first[p->n + 1] = p->first[p->n] + p->grid[p->n][0] * 2 * p->grid[p->n][2];
	p->n++;
	p->cu_text[p->n] = row + i + 1;
}

static struct vfm_model *low_noise; /* of the next samples */

/* -> tokens [p->first[p->n], F] */
static void sample(const struct net *n, const struct vfm_sampler *s, const struct vfm_diffusion *d,
	const struct prompts *p, float *tokens)
{
	struct vfm_sample_job job = {.model = &n->m,
		.diffusion = d,
		.net = n->net,
		.mesh = vfm_mesh_one(),
		.stream = n->d.stream,
		.dtype = n->ps.dtype,
		.low_noise = low_noise};
	struct vfm_sample_request r = {
		.n = p->n, .id = p->id, .grid = (const int32_t(*)[3])p->grid, .text = p->text, .cu_text = p->cu_text};

	assert_true(p->first[p->n] <= MAX_TOKENS);
	OK(vfm_sampler_run(s, &job, &r, tokens, &err));
}

static double noise_of(const struct vfm_sampler *s, uint64_t id, int64_t i)
{
	struct vfm_rng rng = vfm_rng_stream(s->seed, 0, id, VFM_RNG_SAMPLE);

	return vfm_rng_normal(&rng, (uint64_t)i);
}

/* ---- known answers ---- */

/* The largest distance from the closed solution of edm. */
static double edm_error(const struct net *n, int kind, int64_t steps, double sigma_max)
{
	static float tokens[MAX_TOKENS * F];
	struct vfm_diffusion d;
	struct vfm_sampler s;
	struct prompts p = {0};
	double worst = 0, s1;

	vfm_diffusion_defaults(&d);
	vfm_sampler_defaults(&s);
	s.solver.kind = kind;
	s.solver.steps = steps;
	s.cfg = 1;
	s.seed = 11;
	s.solver.sigma_min = 5e-4; /* the last step, to 0, is of first order: keep it short */
	s.solver.sigma_max = sigma_max;
	add_prompt(&p, 0);
	add_prompt(&p, 3);
	sample(n, &s, &d, &p, tokens);
	s1 = sqrt(sigma_max * sigma_max + d.sigma_data * d.sigma_data);
	for (int q = 0; q < p.n; q++) {
		for (int64_t i = 0; i < (p.first[q + 1] - p.first[q]) * F; i++) {
			double want = d.sigma_data *
				(noise_of(&s, p.id[q], i) * sigma_max / s1 +
					bias(i % F) * atan(sigma_max / d.sigma_data));
			double e = fabs(want - (double)tokens[p.first[q] * F + i]);

			worst = e > worst ? e : worst;
		}
	}
	return worst;
}

static void test_edm_order(void **state)
{
	static const struct {
		int kind, intervals;
		double order;
	} cases[] = {{VFM_SOLVER_EULER, 64, 1}, {VFM_SOLVER_HEUN, 24, 2}};
	struct net n;

	(void)state;
	net_open(&n, true);
	for (size_t k = 0; k < 2; k++) {
		/* N steps are N-1 intervals and the last one to 0. */
		double e1 = edm_error(&n, cases[k].kind, cases[k].intervals + 1, 80);
		double e2 = edm_error(&n, cases[k].kind, 2 * cases[k].intervals + 1, 80);
		double e4 = edm_error(&n, cases[k].kind, 4 * cases[k].intervals + 1, 80);
		double order1 = log2(e1 / e2), order2 = log2(e2 / e4);

		print_message("order %.0f: errors %.2e %.2e %.2e, measured %.3f, %.3f\n", cases[k].order, e1, e2, e4,
			order1, order2);
		assert_true(fabs(order1 - cases[k].order) < 0.25);
		assert_true(fabs(order2 - cases[k].order) < 0.15);
	}
	/* auto is heun */
	assert_true(edm_error(&n, VFM_SOLVER_AUTO, 33, 80) == edm_error(&n, VFM_SOLVER_HEUN, 33, 80));
	/* and it is this solution; also from another start */
	assert_true(edm_error(&n, VFM_SOLVER_HEUN, 200, 80) < 1e-3);
	assert_true(edm_error(&n, VFM_SOLVER_HEUN, 200, 3) < 1e-3);
	net_close(&n);
}

static void test_flow_known(void **state)
{
	static const struct {
		int64_t steps;
		double shift;
	} cases[] = {{1, 1}, {7, 1}, {32, 3}};
	static float tokens[MAX_TOKENS * F];
	struct prompts p = {0};
	struct net n;

	(void)state;
	net_open(&n, true);
	add_prompt(&p, 2);
	add_prompt(&p, 1);
	for (size_t c = 0; c < 3; c++) {
		struct vfm_diffusion d;
		struct vfm_sampler s;

		vfm_diffusion_defaults(&d);
		d.kind = VFM_FLOW;
		d.shift = cases[c].shift;
		vfm_sampler_defaults(&s);
		s.solver.steps = cases[c].steps;
		s.seed = 5;
		sample(&n, &s, &d, &p, tokens); /* guided: the same, because the text plays no role */
		for (int q = 0; q < p.n; q++)
			for (int64_t i = 0; i < (p.first[q + 1] - p.first[q]) * F; i++) {
				double got = (double)tokens[p.first[q] * F + i], noise = noise_of(&s, p.id[q], i);

				if (i % F == 0 && fabs(got - noise) > 2e-6) /* F = 0: the noise as it was */
					fail_msg("steps %d: %.9g, expected %.9g", (int)s.solver.steps, got, noise);
				if (fabs(got - (noise - bias(i % F))) > 5e-6)
					fail_msg("steps %d: %.9g, expected %.9g", (int)s.solver.steps, got,
						noise - bias(i % F));
			}
	}
	net_close(&n);
}

/* The solvers on the device are those on the host. */
static void test_solvers(void **state)
{
	static float tokens[MAX_TOKENS * F];
	struct prompts p = {0};
	struct net n;

	(void)state;
	net_open(&n, true);
	add_prompt(&p, 1);
	for (int c = 0; c < 2 * VFM_SOLVER_KINDS; c++) {
		struct vfm_diffusion d;
		struct vfm_sampler s;
		struct vfm_solver_plan plan;
		double worst = 0;

		vfm_diffusion_defaults(&d);
		d.kind = c % 2 ? VFM_FLOW : VFM_EDM;
		vfm_sampler_defaults(&s);
		s.solver.kind = c / 2;
		s.solver.order = 3;
		s.solver.steps = 9;
		sample(&n, &s, &d, &p, tokens);
		OK(vfm_solver_plan_make(&plan, &s.solver, &d, &err));
		for (int64_t i = 0; i < p.first[1] * F; i++) {
			double x = plan.start * noise_of(&s, p.id[0], i), y = x, h[VFM_SOLVER_HISTORY] = {0};

			for (int64_t k = 0; k < plan.evals; k++) {
				struct vfm_solver_eval e;

				vfm_solver_at(&plan, k, &e);
				memmove(h + 1, h, (VFM_SOLVER_HISTORY - 1) * sizeof(h[0]));
				h[0] = e.pred[0] * y + e.pred[1] * bias(i % F);
				x *= e.state[0];
				for (int j = 0; j < VFM_SOLVER_HISTORY; j++)
					x += e.state[1 + j] * h[j];
				y = e.point[0] * x;
				for (int j = 0; j < VFM_SOLVER_HISTORY; j++)
					y += e.point[1 + j] * h[j];
			}
			worst = fmax(worst, fabs(y - (double)tokens[i]));
		}
		print_message("diffusion %d, solver %d: %.1e\n", d.kind, s.solver.kind, worst);
		assert_true(worst < (d.kind == VFM_EDM ? 1e-4 : 1e-5)); /* edm starts at 80 */
		vfm_solver_plan_release(&plan);
	}
	net_close(&n);
}

/* Two constant networks: x(0) = x(1) - (1 - t) b + t b, where t is the level at which the second begins. */
static void test_two_networks(void **state)
{
	static const struct {
		double boundary, share; /* share of the second in the path from 1 to 0, in quarters */
	} cases[] = {{0.75, 0.5}, {0.7500001, 0.75}, {1, 0.75}, {0.1, 0}, {0, 0}};
	static float tokens[MAX_TOKENS * F];
	struct prompts p = {0};
	struct vfm_diffusion d;
	struct vfm_sampler s;
	struct net n, low;

	(void)state;
	net_open(&n, true);
	net_open(&low, true);
	for (size_t i = 0; i < low.ps.n; i++) {
		struct vfm_param *q = low.ps.p[i];
		float v[F];

		if (strcmp(q->name, "out.bias") != 0)
			continue;
		for (int f = 0; f < F; f++)
			v[f] = (float)(-3 * bias(f));
		OK(vfm_param_put(&low.ps, NULL, q, v + vfm_param_owned(&low.ps, q).a, &err));
	}
	OK(vfm_params_refresh(&low.ps, &err));
	add_prompt(&p, 1);
	vfm_diffusion_defaults(&d);
	d.kind = VFM_FLOW;
	vfm_sampler_defaults(&s);
	s.solver.steps = 4; /* levels 1, 3/4, 1/2, 1/4 */
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		double b = cases[c].share;

		s.boundary = cases[c].boundary;
		low_noise = s.boundary > 0 ? low.net : NULL;
		sample(&n, &s, &d, &p, tokens);
		low_noise = NULL;
		for (int64_t i = 0; i < p.first[1] * F; i++) {
			double want = noise_of(&s, p.id[0], i) - (1 - b) * bias(i % F) + 3 * b * bias(i % F);

			if (fabs(want - (double)tokens[i]) > 5e-6)
				fail_msg("boundary %g: %.9g, expected %.9g", s.boundary, (double)tokens[i], want);
		}
	}
	net_close(&low);
	net_close(&n);
}

/* ---- identities ---- */

/* Guidance in an interval of levels, with the scale of each network.  The second network is constant, so the result
 * shows the first evaluation. */
static void test_guidance_schedule(void **state)
{
	static float plain[MAX_TOKENS * F], strong[MAX_TOKENS * F], got[MAX_TOKENS * F], again[MAX_TOKENS * F];
	struct prompts p = {0};
	struct vfm_diffusion d;
	struct vfm_sampler s, one;
	struct net n, low;

	(void)state;
	net_open(&n, false);
	net_open(&low, true);
	add_prompt(&p, 1);
	add_prompt(&p, 2);
	vfm_diffusion_defaults(&d);
	d.kind = VFM_FLOW;
	vfm_sampler_defaults(&one);
	one.solver.steps = 1;
	one.cfg = 1;
	sample(&n, &one, &d, &p, plain);
	one.cfg = 4;
	sample(&n, &one, &d, &p, strong);
	s = one;
	s.solver.steps = 2; /* levels 1 and 1/2 */
	s.boundary = 0.6;
	low_noise = low.net;
	for (int c = 0; c < 4; c++) {
		const float *first = c < 2 ? strong : plain; /* x(1) - F of the first evaluation */

		s.cfg = c == 2 ? 1 : 4;
		s.low_noise_cfg = c == 0 ? 1 : c == 2 ? 7 : (double)NAN;
		s.cfg_interval[0] = c == 1 ? 0.9 : 0;
		s.cfg_interval[1] = c == 3 ? 0.9 : (double)INFINITY;
		sample(&n, &s, &d, &p, got);
		for (int q = 0; q < p.n; q++)
			for (int64_t i = 0; i < (p.first[q + 1] - p.first[q]) * F; i++) {
				double x = noise_of(&s, p.id[q], i), f = x - (double)first[p.first[q] * F + i];
				double want = x - 0.5 * f - 0.5 * bias(i % F);

				if (fabs(want - (double)got[p.first[q] * F + i]) > 1e-5)
					fail_msg("case %d: %.9g, expected %.9g", c, (double)got[p.first[q] * F + i],
						want);
			}
	}
	low_noise = NULL;
	/* outside of the interval there is no guidance, and a ramp to the same scale is none */
	s = one;
	s.solver.steps = 3;
	s.cfg = 1;
	sample(&n, &s, &d, &p, plain);
	s.cfg = 4;
	sample(&n, &s, &d, &p, strong);
	s.cfg_end = 4;
	sample(&n, &s, &d, &p, again);
	assert_memory_equal(strong, again, (size_t)(p.first[2] * F) * sizeof(float));
	s.cfg_end = 1;
	sample(&n, &s, &d, &p, got);
	assert_memory_not_equal(strong, got, (size_t)(p.first[2] * F) * sizeof(float));
	s.cfg_interval[1] = 0.1;
	sample(&n, &s, &d, &p, again);
	assert_memory_equal(plain, again, (size_t)(p.first[2] * F) * sizeof(float));
	net_close(&low);
	net_close(&n);
}

/* The scales of a ramp and an interval. */
static void test_scale(void **state)
{
	static const double want[] = {6, 5, 1, 3, 2}; /* levels 1, 0.8 ... 0.2 */
	struct vfm_diffusion d;
	struct vfm_sampler s;
	struct vfm_solver_plan plan;
	struct vfm_solver_eval e;

	(void)state;
	vfm_diffusion_defaults(&d);
	d.kind = VFM_FLOW;
	vfm_sampler_defaults(&s);
	s.solver.steps = 5;
	s.cfg = 6;
	s.cfg_end = 2;
	OK(vfm_solver_plan_make(&plan, &s.solver, &d, &err));
	for (int64_t k = 0; k < 5; k++) {
		vfm_solver_at(&plan, k, &e);
		s.cfg_interval[0] = k == 2 ? e.noise + 1e-9 : e.noise;
		s.cfg_interval[1] = k == 4 ? e.noise : 1;
		assert_true(fabs(vfm_sampler_cfg(&s, &plan, &e) - want[k]) < 1e-12);
	}
	vfm_solver_plan_release(&plan);
}

/* One step of flow: x(1) - F.  So F can be read, and guidance is F(no text) + cfg (F(text) - F(no text)). */
static void test_guidance(void **state)
{
	static float none[MAX_TOKENS * F], text[MAX_TOKENS * F], guided[MAX_TOKENS * F];
	struct vfm_diffusion d;
	struct vfm_sampler s;
	struct prompts p = {0};
	double differ = 0;
	struct net n;

	(void)state;
	net_open(&n, false);
	add_prompt(&p, 1);
	add_prompt(&p, 2);
	vfm_diffusion_defaults(&d);
	d.kind = VFM_FLOW;
	vfm_sampler_defaults(&s);
	s.solver.steps = 1;
	s.cfg = 1;
	sample(&n, &s, &d, &p, text);
	s.cfg = 0;
	sample(&n, &s, &d, &p, none);
	s.cfg = 4.5;
	sample(&n, &s, &d, &p, guided);
	for (int64_t i = 0; i < p.first[p.n] * F; i++) {
		double want = (double)none[i] + 4.5 * ((double)text[i] - (double)none[i]);

		differ = fmax(differ, fabs((double)text[i] - (double)none[i]));
		if (fabs((double)guided[i] - want) > 2e-5)
			fail_msg("%.9g, expected %.9g", (double)guided[i], want);
	}
	assert_true(differ > 0.01); /* the text matters */
	net_close(&n);
}

/* The prediction of a text alone: one step of flow without guidance. */
static void predict(const struct net *n, struct vfm_sampler s, const struct prompts *p, float *tokens)
{
	struct vfm_diffusion d;

	vfm_diffusion_defaults(&d);
	d.kind = VFM_FLOW;
	s.cfg = 1;
	sample(n, &s, &d, p, tokens);
}

/* model.text_pad gives the same latents as prompts with rows of zeros, also with guidance from the null text. */
static void test_text_pad(void **state)
{
	static float own[MAX_TOKENS * F], padded[MAX_TOKENS * F], zeros[MAX_TOKENS * F], text[3 * 5 * TEXT_DIM];
	const int32_t cu[] = {0, 5, 10, 15};
	struct prompts p = {0};
	struct vfm_diffusion d;
	struct vfm_sampler s;
	struct net n;

	(void)state;
	net_open(&n, false);
	vfm_diffusion_defaults(&d);
	vfm_sampler_defaults(&s);
	s.solver.steps = 2;
	s.cfg = 3;
	for (int i = 0; i < 3; i++)
		add_prompt(&p, i);
	sample(&n, &s, &d, &p, own);
	n.m.text_len = 5;
	n.m.text_pad = true;
	sample(&n, &s, &d, &p, padded);
	n.m.text_pad = false;
	for (int i = 0; i < 3; i++)
		memcpy(text + cu[i] * TEXT_DIM, p.text + p.cu_text[i] * TEXT_DIM,
			(size_t)(i + 1) * TEXT_DIM * sizeof(float));
	memcpy(p.cu_text, cu, sizeof(cu));
	memcpy(p.text, text, sizeof(text));
	sample(&n, &s, &d, &p, zeros);
	assert_memory_equal(padded, zeros, (size_t)(p.first[3] * F) * sizeof(float));
	assert_memory_not_equal(padded, own, (size_t)(p.first[3] * F) * sizeof(float));
	net_close(&n);
}

/* Guidance leads from the negative text's prediction; a sample whose texts are both null is not guided. */
static void test_negative(void **state)
{
	static float text[MAX_TOKENS * F], against[MAX_TOKENS * F], guided[MAX_TOKENS * F], plain[MAX_TOKENS * F];
	/* three samples of one grid: text and negative, text and null, null and null */
	struct prompts p = {.n = 3, .id = {7, 8, 9}, .cu_text = {0, 2, 4, 4}}, q = p;
	const int32_t cu_negative[] = {0, 3, 3, 3}, cu_text2[] = {0, 0, 3, 4}, cu_negative2[] = {0, 2, 2, 2};
	const float text2[4 * 5] = {1, 2, 3};
	struct vfm_diffusion d;
	struct vfm_sampler s;
	struct vfm_sample_request r = {.n = 3, .id = p.id, .text = p.text, .cu_text = p.cu_text};
	double differ = 0;
	struct net n;

	(void)state;
	net_open(&n, false);
	for (int i = 0; i < 3; i++) {
		memcpy(p.grid[i], (int32_t[3]){1, 2, 3}, sizeof(p.grid[i]));
		memcpy(q.grid[i], p.grid[i], sizeof(p.grid[i]));
		p.first[i + 1] = q.first[i + 1] = 6 * (i + 1);
	}
	for (int k = 0; k < 4 * TEXT_DIM; k++) {
		p.text[k] = (float)(k % 7) - 3;
		q.text[k] = (float)(k % 5) - 2;
	}
	memcpy(q.cu_text, cu_negative, sizeof(cu_negative));
	vfm_diffusion_defaults(&d);
	d.kind = VFM_FLOW;
	vfm_sampler_defaults(&s);
	s.solver.steps = 1;
	predict(&n, s, &p, text);
	predict(&n, s, &q, against);
	s.cfg = 4.5;
	r.grid = (const int32_t(*)[3])p.grid;
	r.negative = q.text;
	r.cu_negative = q.cu_text;
	{
		struct vfm_sample_job job = {.model = &n.m,
			.diffusion = &d,
			.net = n.net,
			.mesh = vfm_mesh_one(),
			.stream = n.d.stream,
			.dtype = n.ps.dtype};

		OK(vfm_sampler_run(&s, &job, &r, guided, &err));
		/* second texts of some samples, which this architecture does not read */
		n.m.text2_dim = 5;
		r.text2 = text2;
		r.negative2 = text2 + 5;
		r.cu_text2 = cu_text2;
		r.cu_negative2 = cu_negative2;
		OK(vfm_sampler_run(&s, &job, &r, plain, &err));
		assert_memory_equal(plain, guided, 18 * F * sizeof(float));
		n.m.text2_len = 2;
		assert_int_equal(vfm_sampler_run(&s, &job, &r, plain, &err), VFM_EUSAGE);
		assert_non_null(
			strstr(err.msg, "sample 8 has 3 rows of the second text encoder, but model.text2_len is 2"));
		n.m.text2_dim = 0;
		s.cfg = 1;
		OK(vfm_sampler_run(&s, &job, &r, plain, &err));
	}
	for (int i = 0; i < 12 * F; i++) { /* the null text is one and the same: against holds it from sample 1 on */
		double want = (double)against[i] + 4.5 * ((double)text[i] - (double)against[i]);

		differ = fmax(differ, fabs((double)text[i] - (double)against[i]));
		if (fabs((double)guided[i] - want) > 5e-5)
			fail_msg("%d: %.9g, expected %.9g", i, (double)guided[i], want);
	}
	assert_true(differ > 0.01);
	assert_memory_equal(guided + 12 * F, text + 12 * F, 6 * F * sizeof(float)); /* not guided */
	assert_memory_equal(plain, text, 18 * F * sizeof(float));                   /* cfg 1: no negative */
	net_close(&n);
}

/* A sample does not depend on what shares its pack, on its place there, or on the number of threads. */
static void test_packs(void **state)
{
	static float alone[MAX_TOKENS * F], together[MAX_TOKENS * F];
	static const int order[] = {2, 0, 3, 1};
	struct vfm_sampler s;
	struct net n;

	(void)state;
	net_open(&n, false);
	vfm_sampler_defaults(&s);
	s.solver.steps = 4;
	for (int kind = VFM_EDM; kind <= VFM_FLOW; kind++) {
		struct vfm_diffusion d;
		struct prompts all = {0};

		vfm_diffusion_defaults(&d);
		d.kind = kind;
		for (int i = 0; i < MAX_N; i++)
			add_prompt(&all, order[i]);
		vfm_par_set_threads(2);
		sample(&n, &s, &d, &all, together);
		vfm_par_set_threads(1);
		for (int i = 0; i < MAX_N; i++) {
			struct prompts one = {0};

			add_prompt(&one, order[i]);
			sample(&n, &s, &d, &one, alone);
			assert_memory_equal(
				alone, together + all.first[i] * F, (size_t)one.first[1] * F * sizeof(float));
		}
		s.seed++;
		sample(&n, &s, &d, &all, alone);
		assert_true(memcmp(alone, together, F * sizeof(float)) != 0);
	}
	net_close(&n);
}

/* ---- the frame ---- */

struct count {
	int64_t calls, total;
	bool in_order;
};

static void on_progress(void *ctx, int64_t done, int64_t total)
{
	struct count *c = ctx;

	c->in_order = c->in_order && done == c->calls;
	c->calls++;
	c->total = total;
}

static void test_evaluations(void **state)
{
	static const struct {
		int kind, diffusion;
		int64_t steps, evals;
	} cases[] = {{VFM_SOLVER_HEUN, VFM_EDM, 5, 9}, {VFM_SOLVER_HEUN, VFM_EDM, 1, 1},
		{VFM_SOLVER_EULER, VFM_EDM, 5, 5}, {VFM_SOLVER_AUTO, VFM_FLOW, 5, 5}, {VFM_SOLVER_HEUN, VFM_FLOW, 5, 9},
		{VFM_SOLVER_UNIPC, VFM_FLOW, 5, 5}};
	static float tokens[MAX_TOKENS * F];
	struct prompts p = {0};
	struct net n;

	(void)state;
	net_open(&n, true);
	add_prompt(&p, 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct count c = {.in_order = true};
		struct vfm_diffusion d;
		struct vfm_sampler s;

		vfm_diffusion_defaults(&d);
		d.kind = cases[i].diffusion;
		vfm_sampler_defaults(&s);
		s.solver.kind = cases[i].kind;
		s.solver.steps = cases[i].steps;
		s.progress = on_progress;
		s.ctx = &c;
		sample(&n, &s, &d, &p, tokens);
		assert_true(c.in_order);
		assert_int_equal(c.calls, cases[i].evals);
		assert_int_equal(c.total, cases[i].evals);
	}
	net_close(&n);
}

static void test_check(void **state)
{
	struct vfm_diffusion edm, flow;
	struct vfm_sampler good, s;

	(void)state;
	vfm_diffusion_defaults(&edm);
	flow = edm;
	flow.kind = VFM_FLOW;
	vfm_sampler_defaults(&good);
	assert_int_equal(vfm_sampler_check(&good, &edm, &err), 0);
	assert_int_equal(vfm_sampler_check(&good, &flow, &err), 0);
#define BAD(diffusion, change)                                                                                         \
	do {                                                                                                           \
		s = good;                                                                                              \
		change;                                                                                                \
		assert_int_equal(vfm_sampler_check(&s, diffusion, &err), VFM_EUSAGE);                                  \
	} while (0)
	BAD(&edm, s.solver.steps = 0);
	BAD(&edm, s.boundary = 0.9);
	BAD(&flow, s.boundary = -0.1);
	BAD(&flow, s.boundary = 1.1);
	BAD(&flow, s.cfg_interval[0] = -1);
	BAD(&flow, s.cfg_interval[0] = (double)NAN);
	BAD(&flow, (s.cfg_interval[0] = 0.5, s.cfg_interval[1] = 0.4));
	BAD(&flow, s.cfg_end = (double)INFINITY);
	BAD(&flow, s.low_noise_cfg = (double)INFINITY);
	BAD(&flow, s.cfg_end = s.low_noise_cfg = 2);
	BAD(&edm, s.cfg = (double)NAN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_edm_order),
		cmocka_unit_test(test_flow_known),
		cmocka_unit_test(test_solvers),
		cmocka_unit_test(test_two_networks),
		cmocka_unit_test(test_guidance_schedule),
		cmocka_unit_test(test_scale),
		cmocka_unit_test(test_guidance),
		cmocka_unit_test(test_text_pad),
		cmocka_unit_test(test_negative),
		cmocka_unit_test(test_packs),
		cmocka_unit_test(test_evaluations),
		cmocka_unit_test(test_check),
	};

	vfm_par_set_threads(1); /* the networks are tiny */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
