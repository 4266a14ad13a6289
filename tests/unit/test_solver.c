/* The solvers in float64: against the schedulers of diffusers (tests/ref/make_schedulers.py), against exact solutions
 * (order of convergence), and settings that are refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/json.h"
#include "net/diffusion/solver.h"
#include "ok.h"

enum { DIMS = 3, MAX_EVALS = 400 };

/* The output F of a network at (x, noise); time is its time input. */
typedef double (*network_fn)(const struct vfm_diffusion *d, double x, double noise, double time);

struct states {
	double x[MAX_EVALS][DIMS], y[MAX_EVALS][DIMS]; /* after each evaluation */
};

static int kind_of(const char *name)
{
	static const char *const names[VFM_SOLVER_KINDS] = {"auto", "euler", "heun", "unipc", "dpm++", "res"};
	int kind = 0;

	while (strcmp(name, names[kind]) != 0)
		kind++;
	return kind;
}

static double combine(const double *coef, double x, double h[VFM_SOLVER_HISTORY])
{
	double sum = coef[0] * x;

	for (int j = 0; j < VFM_SOLVER_HISTORY; j++)
		sum += coef[1 + j] * h[j];
	return sum;
}

/* Integrates DIMS numbers from `start`. */
static void integrate_on_host(
	const struct vfm_solver_plan *p, network_fn network, const double *start, struct states *out)
{
	assert_true(p->evals <= MAX_EVALS);
	for (int d = 0; d < DIMS; d++) {
		double x = start[d], y = start[d], h[VFM_SOLVER_HISTORY] = {0};

		for (int64_t k = 0; k < p->evals; k++) {
			struct vfm_solver_eval e;

			vfm_solver_at(p, k, &e);
			memmove(h + 1, h, (VFM_SOLVER_HISTORY - 1) * sizeof(h[0]));
			h[0] = e.pred[0] * y + e.pred[1] * network(&p->d, y, e.noise, (double)e.t_cond);
			for (int j = 0; j < VFM_SOLVER_HISTORY; j++)
				if (j >= p->history || j > k) /* these do not exist */
					assert_true(e.state[1 + j] == 0 && e.point[1 + j] == 0);
			x = combine(e.state, x, h);
			y = combine(e.point, x, h);
			out->x[k][d] = x;
			out->y[k][d] = y;
		}
	}
}

/* ---- diffusers ---- */

static double reference_network(const struct vfm_diffusion *d, double x, double noise, double time)
{
	return sin(2 * vfm_diffusion_c_in(d, noise) * x) + 0.7 * time / d->time_scale - 0.3;
}

static double number_at(const json_t *run, const char *key, int64_t i)
{
	return json_number_value(json_array_get(json_object_get(run, key), (size_t)i));
}

static void compare_levels(const struct vfm_solver_plan *p, const json_t *run)
{
	bool heun = p->kind == VFM_SOLVER_HEUN; /* its scheduler lists a level for each evaluation */

	for (int64_t k = 0; k < p->evals; k++) {
		struct vfm_solver_eval e;
		double sigma, time;

		vfm_solver_at(p, k, &e);
		sigma = number_at(run, "sigmas", heun ? 2 * e.level - (e.level > 0) : e.level);
		time = number_at(run, "times", k);
		if (json_object_get(run, "karras")) { /* the last bits of pow differ */
			assert_true(fabs(e.noise / sigma - 1) < 1e-6 && fabs((double)e.t_cond / time - 1) < 1e-6);
		} else if (p->d.kind == VFM_FLOW) {
			assert_true((float)e.noise == (float)sigma && e.t_cond == (float)time);
		} else {
			assert_true(fabs(e.noise / sigma - 1) < 1e-6);
			assert_true(fabs((double)e.t_cond - VFM_TIME_SCALE * time) < 1e-3);
		}
	}
	assert_true(p->noise[p->steps] == 0);
}

/* Reads the settings of a run.  Those of karras are for a network whose time is the level, as in cosmos. */
static void read_run(const json_t *run, struct vfm_diffusion *d, struct vfm_solver *s)
{
	vfm_diffusion_defaults(d);
	vfm_solver_defaults(s);
	s->kind = kind_of(json_string_value(json_object_get(run, "sampler")));
	assert_true(s->kind > VFM_SOLVER_AUTO);
	s->steps = json_integer_value(json_object_get(run, "steps"));
	s->shift = json_number_value(json_object_get(run, "shift"));
	if (json_integer_value(json_object_get(run, "order")))
		s->order = json_integer_value(json_object_get(run, "order"));
	d->kind = s->shift > 0 ? VFM_FLOW : VFM_EDM;
	s->schedule = s->shift > 0 ? VFM_SCHEDULE_DIFFUSERS : VFM_SCHEDULE_DEFAULT;
	if (json_object_get(run, "karras")) {
		d->kind = VFM_FLOW;
		d->time_scale = 1;
		s->schedule = VFM_SCHEDULE_KARRAS;
		s->sigma_min = number_at(run, "karras", 0);
		s->sigma_max = number_at(run, "karras", 1);
	}
}

/* Returns the largest difference of the states. */
static double compare_run(const json_t *run)
{
	struct vfm_diffusion d;
	struct vfm_solver s;
	struct vfm_solver_plan p;
	struct states got;
	double start[DIMS], worst = 0;
	const json_t *states = json_object_get(run, "states");

	read_run(run, &d, &s);
	OK(vfm_solver_plan_make(&p, &s, &d, &err));
	compare_levels(&p, run);
	for (int i = 0; i < DIMS; i++)
		start[i] = number_at(run, "start", i);
	integrate_on_host(&p, reference_network, start, &got);
	assert_int_equal(json_array_size(states), p.evals);
	for (int64_t k = 0; k < p.evals; k++)
		for (int i = 0; i < DIMS; i++) {
			double want = json_number_value(json_array_get(json_array_get(states, (size_t)k), (size_t)i));

			worst = fmax(worst, fabs(got.y[k][i] - want) / fmax(1, fabs(want)));
		}
	vfm_solver_plan_release(&p);
	return worst;
}

static void test_diffusers(void **state)
{
	const char *dir = getenv("VFM_GOLDEN") ? getenv("VFM_GOLDEN") : "tests/golden";
	double worst[VFM_SOLVER_KINDS][4] = {0}, karras = 0;
	char path[512];
	struct vfm_jsonl r = {0};
	json_t *run;
	int runs = 0;

	(void)state;
	snprintf(path, sizeof(path), "%s/schedulers.jsonl", dir);
	OK(vfm_jsonl_open(&r, path, &err));
	while (vfm_jsonl_next(&r, &run, &err) > 0) {
		if (json_object_get(run, "sampler")) {
			int kind = kind_of(json_string_value(json_object_get(run, "sampler")));
			double e = compare_run(run), *w;

			w = &worst[kind][json_integer_value(json_object_get(run, "order"))];
			*w = fmax(*w, e);
			karras = fmax(karras, json_object_get(run, "karras") ? e : 0);
			if (!(e < (json_number_value(json_object_get(run, "shift")) > 0 ? 1e-7 : 1e-6)))
				fail_msg("%s: %g", json_dumps(json_object_get(run, "sigmas"), 0), e);
			runs++;
		}
		json_decref(run);
	}
	vfm_jsonl_close(&r);
	assert_int_equal(runs, 6 * 5 * 4 + 2 * 4 + 3 * 5 + 4);
	print_message("largest differences: euler %.1e, heun %.1e, unipc %.1e %.1e %.1e, dpm++ %.1e, karras %.1e\n",
		worst[VFM_SOLVER_EULER][0], worst[VFM_SOLVER_HEUN][0], worst[VFM_SOLVER_UNIPC][1],
		worst[VFM_SOLVER_UNIPC][2], worst[VFM_SOLVER_UNIPC][3], worst[VFM_SOLVER_DPMPP][0], karras);
}

/* ---- exact solutions ---- */

/* Data N(MEAN, STD^2): the denoiser is linear and the ODE has the solution x = alpha MEAN + s(noise) z, where s^2 =
 * alpha^2 STD^2 + sigma^2. */
#define MEAN 0.7
#define STD  0.4

static double spread(const struct vfm_diffusion *d, double noise)
{
	double alpha = d->kind == VFM_FLOW ? 1 - noise : 1;

	return hypot(alpha * STD, noise);
}

static double exact(const struct vfm_diffusion *d, double noise, double z)
{
	return (d->kind == VFM_FLOW ? 1 - noise : 1) * MEAN + spread(d, noise) * z;
}

static double gaussian_network(const struct vfm_diffusion *d, double x, double noise, double time)
{
	double alpha = d->kind == VFM_FLOW ? 1 - noise : 1, s = spread(d, noise), a, b;
	double x0 = MEAN + alpha * STD * STD / (s * s) * (x - alpha * MEAN);

	(void)time;
	vfm_diffusion_denoise(d, noise, &a, &b);
	return (x0 - a * x) / b;
}

/* The error after n intervals from `from` to `to`.  Further levels follow, so that no order is reduced before. */
static double gaussian_error(int diffusion, int kind, int order, int n, double from, double to)
{
	const double z[DIMS] = {-1.5, 0.3, 2};
	double start[DIMS], worst = 0;
	struct vfm_solver s;
	struct vfm_diffusion d;
	struct vfm_solver_plan p;
	struct states got;
	int64_t k;

	vfm_diffusion_defaults(&d);
	d.kind = diffusion;
	vfm_solver_defaults(&s);
	s.kind = kind;
	s.order = order;
	s.steps = n + 4;
	OK(vfm_solver_plan_make(&p, &s, &d, &err));
	for (int i = 0; i < n + 4; i++)
		p.noise[i] = from * pow(to / from, (double)i / n);
	for (int i = 0; i < DIMS; i++)
		start[i] = exact(&d, from, z[i]);
	integrate_on_host(&p, gaussian_network, start, &got);
	k = kind == VFM_SOLVER_HEUN ? 2 * n - 1 : kind == VFM_SOLVER_UNIPC ? n : n - 1;
	for (int i = 0; i < DIMS; i++)
		worst = fmax(
			worst, fabs((kind == VFM_SOLVER_UNIPC ? got.x : got.y)[k][i] - exact(&d, p.noise[n], z[i])));
	vfm_solver_plan_release(&p);
	return worst;
}

static void test_order(void **state)
{
	static const struct {
		const char *name;
		int kind, order;
		double expected;
	} cases[] = {
		{"euler", VFM_SOLVER_EULER, 2, 1}, {"heun", VFM_SOLVER_HEUN, 2, 2}, {"dpm++", VFM_SOLVER_DPMPP, 2, 2},
		{"res", VFM_SOLVER_RES, 2, 2}, {"unipc 1", VFM_SOLVER_UNIPC, 1, 2}, {"unipc 2", VFM_SOLVER_UNIPC, 2, 3},
		{"unipc 3", VFM_SOLVER_UNIPC, 3, 0}, /* its first steps dominate: only better than 2 */
	};

	(void)state;
	for (int diffusion = VFM_EDM; diffusion <= VFM_FLOW; diffusion++) {
		double before = 0; /* the last error of the case before */

		for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
			double from = diffusion == VFM_EDM ? 20 : 0.8, to = diffusion == VFM_EDM ? 0.1 : 0.2;
			double e[3];

			for (int i = 0; i < 3; i++)
				e[i] = gaussian_error(diffusion, cases[c].kind, cases[c].order, 40 << i, from, to);
			print_message("%s %s: errors %.2e %.2e %.2e, orders %.2f %.2f\n",
				diffusion == VFM_EDM ? "edm" : "flow", cases[c].name, e[0], e[1], e[2],
				log2(e[0] / e[1]), log2(e[1] / e[2]));
			if (cases[c].expected > 0)
				assert_true(fabs(log2(e[1] / e[2]) - cases[c].expected) < 0.2);
			else
				assert_true(e[2] < before / 3);
			before = e[2];
		}
	}
}

/* res of edm in the form of Cosmos ("2ab"): with dt = ln(s/t), c = ln(s/s1)/dt < 0 and the functions phi of -dt,
 * x_t = e^-dt x_s + dt (b1 x0_s + b2 x0_s1), b1 = phi_1 - phi_2/c, b2 = phi_2/c. */
static void test_res(void **state)
{
	const double start[DIMS] = {-40, 3, 90};
	struct vfm_solver s;
	struct vfm_diffusion d;
	struct vfm_solver_plan p;
	struct states got;

	(void)state;
	vfm_diffusion_defaults(&d);
	vfm_solver_defaults(&s);
	s.kind = VFM_SOLVER_RES;
	s.steps = 7;
	OK(vfm_solver_plan_make(&p, &s, &d, &err));
	integrate_on_host(&p, gaussian_network, start, &got);
	for (int i = 0; i < DIMS; i++) {
		double x = start[i], before = 0, x0, a, b;

		for (int64_t k = 0; k < 7; k++) {
			double s0 = p.noise[k], dt = log(s0 / p.noise[k + 1]), c, phi1, phi2;

			vfm_diffusion_denoise(&d, s0, &a, &b);
			x0 = a * x + b * gaussian_network(&d, x, s0, 0);
			c = k > 0 ? log(s0 / p.noise[k - 1]) / dt : -INFINITY;
			phi1 = -expm1(-dt) / dt;
			phi2 = (1 - phi1) / dt;
			x = k == 6 ? x0 : exp(-dt) * x + dt * ((phi1 - phi2 / c) * x0 + phi2 / c * before);
			before = x0;
			assert_true(fabs(x - got.y[k][i]) < 1e-9);
		}
	}
	vfm_solver_plan_release(&p);
}

static double point_network(const struct vfm_diffusion *d, double x, double noise, double time)
{
	double a, b;

	(void)time;
	vfm_diffusion_denoise(d, noise, &a, &b);
	return (MEAN - a * x) / b;
}

/* Data of a single point: every solver ends there, with every number of steps and every schedule. */
static void test_point(void **state)
{
	const double start[DIMS] = {-1, 0.5, 2};

	(void)state;
	for (int c = 0; c < 2 * VFM_SOLVER_KINDS * 3 * 8; c++) {
		static const int64_t steps[8] = {1, 2, 3, 4, 5, 7, 20, 50};
		struct vfm_diffusion d;
		struct vfm_solver s;
		struct vfm_solver_plan p;
		struct states got;

		vfm_diffusion_defaults(&d);
		vfm_solver_defaults(&s);
		d.kind = c % 2 ? VFM_FLOW : VFM_EDM;
		s.kind = c / 2 % VFM_SOLVER_KINDS;
		s.order = 1 + c / 2 / VFM_SOLVER_KINDS % 3;
		s.steps = steps[c / 2 / VFM_SOLVER_KINDS / 3];
		s.schedule = d.kind == VFM_FLOW && s.kind != VFM_SOLVER_RES && s.order == 2;
		OK(vfm_solver_plan_make(&p, &s, &d, &err));
		assert_true(p.start == (d.kind == VFM_FLOW ? 1 : 80) || s.schedule);
		integrate_on_host(&p, point_network, start, &got);
		for (int i = 0; i < DIMS; i++) /* euler's last step adds up differences */
			assert_true(fabs(got.y[p.evals - 1][i] - MEAN) < 1e-6);
		vfm_solver_plan_release(&p);
	}
}

/* ---- levels and settings ---- */

static void test_levels(void **state)
{
	struct vfm_diffusion d;
	struct vfm_solver s;
	struct vfm_solver_plan p;

	(void)state;
	vfm_diffusion_defaults(&d);
	vfm_solver_defaults(&s);
	s.steps = 4;
	OK(vfm_solver_plan_make(&p, &s, &d, &err));
	assert_int_equal(p.kind, VFM_SOLVER_HEUN);
	assert_int_equal(p.evals, 7);
	assert_true(p.start == p.noise[0] && fabs(p.noise[0] - 80) < 1e-9 && fabs(p.noise[3] - 0.002) < 1e-9);
	vfm_solver_plan_release(&p);

	d.kind = VFM_FLOW;
	d.shift = 3;
	OK(vfm_solver_plan_make(&p, &s, &d, &err));
	assert_int_equal(p.kind, VFM_SOLVER_EULER);
	assert_int_equal(p.evals, 4);
	for (int i = 0; i < 4; i++) {
		double u = 1 - i / 4.0;

		assert_true(fabs(p.noise[i] - 3 * u / (1 + 2 * u)) < 1e-15);
		assert_true(p.t_cond[i] == (float)(1000 * p.noise[i]));
	}
	vfm_solver_plan_release(&p);
	s.shift_terminal = 0.1;
	OK(vfm_solver_plan_make(&p, &s, &d, &err));
	for (int i = 0; i < 4; i++) {
		double u = 1 - i / 4.0;

		assert_true(fabs(p.noise[i] - (1 - (1 - 3 * u / (1 + 2 * u)) * 0.9 / 0.5)) < 1e-15);
	}
	assert_true(p.noise[4] == 0);
	vfm_solver_plan_release(&p);
	s.shift_terminal = 0;
	s.shift = 1; /* instead of that of the model */
	s.kind = VFM_SOLVER_RES;
	OK(vfm_solver_plan_make(&p, &s, &d, &err));
	assert_true(p.start == 1 && p.noise[0] == 1 - 1e-6 && p.noise[1] == 0.75 && p.noise[4] == 0);
	vfm_solver_plan_release(&p);

	/* the levels of edm; the first is not 1, so that a solver without lambda begins below pure noise */
	vfm_solver_defaults(&s);
	s.schedule = VFM_SCHEDULE_KARRAS;
	s.steps = 4;
	s.sigma_min = 0.01;
	s.sigma_max = 200;
	d.time_scale = 1;
	for (s.kind = VFM_SOLVER_EULER; s.kind < VFM_SOLVER_KINDS; s.kind++) {
		const bool in_noise = s.kind == VFM_SOLVER_EULER || s.kind == VFM_SOLVER_HEUN;

		OK(vfm_solver_plan_make(&p, &s, &d, &err));
		for (int i = 0; i < 4; i++) {
			double sigma = pow(pow(200, 1 / 7.0) + i / 3.0 * (pow(0.01, 1 / 7.0) - pow(200, 1 / 7.0)), 7);

			assert_true(fabs(p.noise[i] - sigma / (1 + sigma)) < 1e-14);
			assert_true(p.t_cond[i] == (float)p.noise[i]);
		}
		assert_true(p.noise[4] == 0 && p.start == (in_noise ? p.noise[0] : 1));
		vfm_solver_plan_release(&p);
	}
	d.time_scale = VFM_TIME_SCALE;
	vfm_solver_defaults(&s);

	for (int k = 0; k < VFM_SOLVER_KINDS; k++)
		for (int64_t n = 1; n <= 1000; n *= 10) {
			s.kind = k;
			s.steps = n;
			s.shift = 12;
			OK(vfm_solver_check(&s, &d, &err));
		}
}

static void test_refused(void **state)
{
	struct vfm_diffusion edm, flow;
	struct vfm_solver good, s;

	(void)state;
	vfm_diffusion_defaults(&edm);
	flow = edm;
	flow.kind = VFM_FLOW;
	vfm_solver_defaults(&good);
	OK(vfm_solver_check(&good, &edm, &err));
	OK(vfm_solver_check(&good, &flow, &err));
#define BAD(diffusion, word, change)                                                                                   \
	do {                                                                                                           \
		s = good;                                                                                              \
		change;                                                                                                \
		assert_int_equal(vfm_solver_check(&s, diffusion, &err), VFM_EUSAGE);                                   \
		assert_non_null(strstr(err.msg, word));                                                                \
	} while (0)
	BAD(&edm, "steps", s.steps = 0);
	BAD(&edm, "steps", s.steps = 100001);
	BAD(&edm, "order", s.order = 0);
	BAD(&edm, "order", s.order = 4);
	BAD(&edm, "shift", s.shift = 3);
	BAD(&flow, "shift", s.shift = -1);
	BAD(&flow, "shift", s.shift = (double)NAN);
	BAD(&flow, "shift", s.shift = (double)INFINITY);
	BAD(&flow, "shift_terminal", s.shift_terminal = 1);
	BAD(&flow, "shift_terminal", s.shift_terminal = (double)NAN);
	BAD(&edm, "shift_terminal", s.shift_terminal = 0.1);
	BAD(&flow, "shift_terminal", (s.shift_terminal = 0.1, s.schedule = VFM_SCHEDULE_DIFFUSERS));
	BAD(&edm, "schedule", s.schedule = VFM_SCHEDULE_DIFFUSERS);
	BAD(&edm, "schedule", s.schedule = VFM_SCHEDULE_KARRAS);
	BAD(&flow, "shift", (s.schedule = VFM_SCHEDULE_KARRAS, s.shift = 3));
	BAD(&flow, "res", (s.schedule = VFM_SCHEDULE_DIFFUSERS, s.kind = VFM_SOLVER_RES));
	BAD(&flow, "are equal", (s.steps = 100000, s.shift = 100, s.kind = VFM_SOLVER_UNIPC));
	BAD(&edm, "sigma_min", s.sigma_min = 0);
	BAD(&edm, "sigma_max", s.sigma_max = s.sigma_min);
	BAD(&edm, "sigma_max", s.sigma_max = (double)INFINITY);
	BAD(&edm, "sigma_max", s.sigma_max = (double)NAN);
	BAD(&edm, "rho", s.rho = 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_diffusers),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_res),
		cmocka_unit_test(test_point),
		cmocka_unit_test(test_levels),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
