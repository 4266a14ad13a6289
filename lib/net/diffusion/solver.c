/* solver.c - levels of the schedules, and the coefficients of each solver's evaluations. */
#include "net/diffusion/solver.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* The largest t with a finite lambda, and the number of training timesteps of diffusers' schedulers. */
#define LAST_T          (1 - 1e-6)
#define TRAIN_TIMESTEPS 1000

void vfm_solver_defaults(struct vfm_solver *s)
{
	*s = (struct vfm_solver){.steps = 32, .order = 2, .sigma_min = 0.002, .sigma_max = 80, .rho = 7};
}

/* ---- levels ----
 *
 * Flow, with S(u) = shift u / (1 + (shift - 1) u), i = 0 ... N - 1; the network's time is time_scale l_i:
 *   VFM_SCHEDULE_DEFAULT    l_i = S(1 - i/N).  With shift_terminal = e, l_i = 1 - (1 - S(1 - i/N)) (1 - e) /
 *                           (1 - S(1/N)), as in FlowMatchEulerDiscrete of diffusers; the last level is e.
 *   VFM_SCHEDULE_DIFFUSERS, rounded to float32:
 *     euler, heun    FlowMatchEulerDiscrete, FlowMatchHeunDiscrete: l_i = S(1 + (S(1/1000) - 1) i / (N - 1))
 *     unipc          UniPCMultistep with use_flow_sigmas: l_i = S(1 - 0.999 i/N); if time_scale is 1000, the time has
 *                    no fraction
 *     dpm++          DPMSolverMultistep with use_flow_sigmas: l_i = S(0.999 (1 - i/N)), the time as for unipc
 *   VFM_SCHEDULE_KARRAS    l_i = s_i / (1 + s_i) with s_i as for edm; euler and heun begin with l_0 n
 * lambda is infinite at t = 1, so dpm++, res and unipc lower levels above 1 - 1e-6 to that value.
 *
 * Edm, Karras et al. 2022, equation 5:  l_i = (smax^(1/rho) + i/(N-1) (smin^(1/rho) - smax^(1/rho)))^rho. */

static bool uses_lambda(int kind)
{
	return kind >= VFM_SOLVER_UNIPC;
}

static double shifted(double shift, double u)
{
	return shift * u / (1 + (shift - 1) * u);
}

/* The same with the roundings of float32, as the constructors of the flow-match schedulers compute it. */
static double shifted_f32(double shift, float u)
{
	float above = (float)shift * u, below = 1 + (float)(shift - 1) * u;

	return (double)(above / below);
}

static double karras_level(const struct vfm_solver *s, int64_t i)
{
	double u = s->steps > 1 ? (double)i / (double)(s->steps - 1) : 0;
	double hi = pow(s->sigma_max, 1 / s->rho), lo = pow(s->sigma_min, 1 / s->rho);

	return pow(hi + u * (lo - hi), s->rho);
}

/* Level i of the scheduler in diffusers, in float64.  The order of the operations is that of the scheduler, because the
 * cut of the time to an integer depends on it. */
static double diffusers_level(int kind, int64_t n, double shift, int64_t i)
{
	const double first = 1, last = 1.0 / TRAIN_TIMESTEPS;
	double from, to, step, u;

	if (uses_lambda(kind)) {
		step = (last - first) / (double)n;
		u = (double)(kind == VFM_SOLVER_DPMPP ? n - i : i) * step;
		u += first;
		u = kind == VFM_SOLVER_DPMPP ? 1 - u : u;
		u = shifted(shift, u);
		return kind == VFM_SOLVER_UNIPC && fabs(u - 1) < 1e-6 ? u - 1e-6 : u;
	}
	from = shifted_f32(shift, 1) * TRAIN_TIMESTEPS;
	to = shifted_f32(shift, 1.0F / TRAIN_TIMESTEPS) * TRAIN_TIMESTEPS;
	step = n > 1 ? (to - from) / (double)(n - 1) : 0;
	u = (double)i * step;
	u += from;
	if (i > 0 && i == n - 1)
		u = to;
	return shifted(shift, u / TRAIN_TIMESTEPS);
}

/* Returns level i, stretched so that the last level is `terminal` if that is not 0. */
static double default_level(int64_t n, double shift, double terminal, int64_t i)
{
	double l = shifted(shift, 1 - (double)i / (double)n), last = shifted(shift, 1 / (double)n);

	return terminal > 0 && n > 1 ? 1 - (1 - l) * (1 - terminal) / (1 - last) : l;
}

static void set_level(struct vfm_solver_plan *p, const struct vfm_solver *s, int64_t i)
{
	const double shift = s->shift > 0 ? s->shift : p->d.shift;
	const bool whole = uses_lambda(p->kind) && p->d.time_scale == VFM_TIME_SCALE;
	double l;

	if (p->d.kind == VFM_EDM) {
		p->noise[i] = karras_level(s, i);
		p->t_cond[i] = vfm_diffusion_at(&p->d, p->noise[i]).t_cond;
	} else if (s->schedule == VFM_SCHEDULE_DIFFUSERS) {
		l = diffusers_level(p->kind, p->steps, shift, i);
		p->noise[i] = (double)(float)l;
		p->t_cond[i] = whole ? (float)trunc(l * TRAIN_TIMESTEPS) : (float)l * (float)p->d.time_scale;
	} else {
		l = karras_level(s, i);
		l = s->schedule == VFM_SCHEDULE_KARRAS ? l / (1 + l)
						       : default_level(p->steps, shift, s->shift_terminal, i);
		p->noise[i] = uses_lambda(p->kind) && l > LAST_T ? LAST_T : l;
		p->t_cond[i] = vfm_diffusion_at(&p->d, p->noise[i]).t_cond;
	}
}

/* ---- settings ---- */

static int check_settings(const struct vfm_solver *s, const struct vfm_diffusion *d, int kind, struct vfm_err *err)
{
	if (s->steps < 1 || s->steps > VFM_SOLVER_MAX_STEPS)
		return vfm_fail(err, VFM_EUSAGE, "steps: expected 1 to %d, got %lld", VFM_SOLVER_MAX_STEPS,
			(long long)s->steps);
	if (s->order < 1 || s->order > 3)
		return vfm_fail(err, VFM_EUSAGE, "order: expected 1 to 3, got %lld", (long long)s->order);
	if (!(s->shift >= 0) || !isfinite(s->shift))
		return vfm_fail(err, VFM_EUSAGE, "shift: expected a number above 0, got %g", s->shift);
	if (s->shift > 0 && d->kind != VFM_FLOW)
		return vfm_fail(err, VFM_EUSAGE, "shift: it is for flow; this model was trained with edm");
	if (!(s->shift_terminal >= 0 && s->shift_terminal < 1))
		return vfm_fail(err, VFM_EUSAGE, "shift_terminal: expected a level above 0, below 1, got %g",
			s->shift_terminal);
	if (s->shift_terminal > 0 && (d->kind != VFM_FLOW || s->schedule != VFM_SCHEDULE_DEFAULT))
		return vfm_fail(err, VFM_EUSAGE, "shift_terminal: it is for the default schedule of flow");
	if (!(s->sigma_min > 0) || !(s->sigma_max > s->sigma_min) || !isfinite(s->sigma_max) || !(s->rho > 0))
		return vfm_fail(err, VFM_EUSAGE,
			"expected 0 < sigma_min (%g) < sigma_max and rho > 0, got sigma_max %g", s->sigma_min,
			s->sigma_max);
	if (s->schedule != VFM_SCHEDULE_DEFAULT && d->kind != VFM_FLOW)
		return vfm_fail(err, VFM_EUSAGE,
			"schedule: only flow has a choice; this model was trained with edm, whose levels are those of "
			"karras");
	if (s->schedule == VFM_SCHEDULE_KARRAS && s->shift > 0)
		return vfm_fail(err, VFM_EUSAGE, "shift: the levels of karras have none");
	if (s->schedule == VFM_SCHEDULE_DIFFUSERS && kind == VFM_SOLVER_RES)
		return vfm_fail(err, VFM_EUSAGE, "schedule: diffusers has none for the sampler res");
	return 0;
}

static int history_of(int kind, int64_t order)
{
	return kind == VFM_SOLVER_EULER ? 1 : kind == VFM_SOLVER_UNIPC ? (int)order + 1 : 2;
}

int vfm_solver_plan_make(
	struct vfm_solver_plan *p, const struct vfm_solver *s, const struct vfm_diffusion *d, struct vfm_err *err)
{
	int kind = s->kind != VFM_SOLVER_AUTO ? s->kind : d->kind == VFM_EDM ? VFM_SOLVER_HEUN : VFM_SOLVER_EULER;

	*p = (struct vfm_solver_plan){.kind = kind, .order = s->order, .d = *d, .steps = s->steps};
	TRY(check_settings(s, d, kind, err));
	p->evals = kind == VFM_SOLVER_HEUN ? 2 * s->steps - 1 : s->steps;
	p->history = history_of(kind, s->order);
	p->noise = vfm_calloc((size_t)s->steps + 1, sizeof(*p->noise)); /* the last is 0 */
	p->t_cond = vfm_calloc((size_t)s->steps, sizeof(*p->t_cond));
	for (int64_t i = 0; i < s->steps; i++) {
		set_level(p, s, i);
		if (!(p->noise[i] > 0) || (i > 0 && !(p->noise[i] < p->noise[i - 1])))
			return vfm_fail(err, VFM_EUSAGE,
				"steps: %lld are too many: the noise levels of steps %lld and %lld are equal",
				(long long)s->steps, (long long)i, (long long)i + 1);
	}
	p->start = d->kind == VFM_EDM || (s->schedule == VFM_SCHEDULE_KARRAS && !uses_lambda(kind)) ? p->noise[0] : 1;
	return 0;
}

void vfm_solver_plan_release(struct vfm_solver_plan *p)
{
	free(p->noise);
	free(p->t_cond);
	*p = (struct vfm_solver_plan){0};
}

int vfm_solver_check(const struct vfm_solver *s, const struct vfm_diffusion *d, struct vfm_err *err)
{
	struct vfm_solver_plan p;
	int rc = vfm_solver_plan_make(&p, s, d, err);

	vfm_solver_plan_release(&p);
	return rc;
}

/* ---- steps in lambda: dpm++, res, unipc ----
 *
 * A step leads from level s to level t, and h = lambda_t - lambda_s, with lambda = ln(alpha / sigma); flow:
 * alpha = 1 - t, sigma = t; edm: alpha = 1.  m_0, m_1 ... are the predictions of x0 at this level, the level before ...
 * phi_1(z) = (e^z - 1) / z, phi_(k+1)(z) = (phi_k(z) - 1/k!) / z.
 *
 * dpm++  r = (lambda_s - lambda_s1) / h:
 *        x_t = sigma_t/sigma_s x + alpha_t (1 - e^-h) (m_0 + (m_0 - m_1) / (2 r))
 * res    c = (lambda_s1 - lambda_s) / h:
 *        x_t = sigma_t/sigma_s x + alpha_t h (phi_1(-h) m_0 + phi_2(-h) (m_1 - m_0) / c)
 * unipc  order p = 1, 2, 3, r_k = (lambda_k - lambda_s) / h, k < p:
 *        x_t = sigma_t/sigma_s x - alpha_t (e^-h - 1) (m_0 + sum_k rho_k (m_k - m_0) / r_k)
 *        sum_k rho_k r_k^(i-1) = i! phi_(i+1)(-h) / phi_1(-h) for i = 1 ... p - 1; rho = 1/2 for p = 2.
 *        The corrector repeats the step with m_t, the prediction at its end, as a further term with r = 1, and
 *        i = 1 ... p; rho = 1/2 for p = 1.  m_t is the m_0 of the next step.
 *
 * The first step has order 1, and so has the last, to l_N = 0: x = m_0.  unipc has order min(p, N - i) in step i. */

static double alpha_at(const struct vfm_solver_plan *p, int64_t i)
{
	return p->d.kind == VFM_FLOW ? 1 - p->noise[i] : 1;
}

static double lambda_at(const struct vfm_solver_plan *p, int64_t i)
{
	return log(alpha_at(p, i)) - log(p->noise[i]); /* +inf at level 0 */
}

/* phi_k(z), k >= 1.  Near 0 by its series, because the recurrence cancels. */
static double phi(int k, double z)
{
	double term = 1, sum = 0;

	if (fabs(z) < 1) {
		for (int i = 1; i <= k; i++)
			term /= i;
		for (int j = 1; j < 24; j++) {
			sum += term;
			term *= z / (k + j);
		}
		return sum;
	}
	sum = expm1(z) / z;
	for (int i = 1; i < k; i++) {
		term /= i;
		sum = (sum - term) / z;
	}
	return sum;
}

/* Solves sum_k rho_k r_k^i = b_i, i, k = 0 ... n - 1 <= 2, for different r by elimination. */
static void solve_vandermonde(int n, const double *r, const double *b, double *rho)
{
	double m[3][4];

	for (int i = 0; i < n; i++) {
		for (int k = 0; k < n; k++)
			m[i][k] = pow(r[k], i);
		m[i][n] = b[i];
	}
	for (int c = 0; c < n; c++) {
		int top = c;

		for (int i = c + 1; i < n; i++)
			top = fabs(m[i][c]) > fabs(m[top][c]) ? i : top;
		for (int k = 0; k <= n; k++) {
			double other = m[c][k];

			m[c][k] = m[top][k];
			m[top][k] = other;
		}
		for (int i = 0; i < n; i++) {
			double f = m[i][c] / m[c][c];

			for (int k = c; k <= n && i != c; k++)
				m[i][k] -= f * m[c][k];
		}
	}
	for (int i = 0; i < n; i++)
		rho[i] = m[i][n] / m[i][i];
}

/* The step of order 1 from level s to s + 1, x_t = sigma_t/sigma_s x + alpha_t (1 - e^-h) m.  c: the coefficients of
 * x and m. */
static void first_order_step(const struct vfm_solver_plan *p, int64_t s, double h, double *cx, double *cm)
{
	*cx = p->noise[s + 1] / p->noise[s];
	*cm = -alpha_at(p, s + 1) * expm1(-h);
}

/* Adds the second-order term of dpm++ or res to the step from level s. */
static void add_two_step(const struct vfm_solver_plan *p, int64_t s, double h, double c[1 + VFM_SOLVER_HISTORY])
{
	double back = (lambda_at(p, s) - lambda_at(p, s - 1)) / h, w; /* positive; w: weight of (m_0 - m_1) */

	if (p->kind == VFM_SOLVER_DPMPP)
		w = -0.5 * alpha_at(p, s + 1) * expm1(-h) / back;
	else
		w = alpha_at(p, s + 1) * h * phi(2, -h) / back;
	c[1] += w;
	c[2] -= w;
}

/* The step of unipc from level s with `order`.  The predictor has the predictions m_0 = h_0, m_1 = h_1 ...; the
 * corrector has m_t = h_0, m_0 = h_1 ... */
static void uni_step(
	const struct vfm_solver_plan *p, int64_t s, int order, bool corrects, double c[1 + VFM_SOLVER_HISTORY])
{
	double h = lambda_at(p, s + 1) - lambda_at(p, s), r[3], b[3], rho[3], scale;
	int n = corrects ? order : order - 1;
	double *m = c + 1 + (corrects ? 1 : 0); /* m[k]: coefficient of m_k; m[-1]: of m_t */

	first_order_step(p, s, h, &c[0], &m[0]);
	scale = m[0];
	for (int k = 1; k < order; k++)
		r[k - 1] = (lambda_at(p, s - k) - lambda_at(p, s)) / h;
	if (corrects)
		r[order - 1] = 1;
	for (int i = 1, factorial = 1; i <= n; i++) {
		factorial *= i;
		b[i - 1] = factorial * phi(i + 1, -h) / phi(1, -h);
	}
	if (n == 1)
		rho[0] = 0.5;
	else
		solve_vandermonde(n, r, b, rho);
	for (int k = 1; k <= n; k++) {
		double w = scale * rho[k - 1] / r[k - 1];

		m[corrects && k == n ? -1 : k] += w;
		m[0] -= w;
	}
}

static int64_t unipc_order(const struct vfm_solver_plan *p, int64_t step)
{
	int64_t order = p->order;

	order = order > p->steps - step ? p->steps - step : order;
	return order > step + 1 ? step + 1 : order;
}

/* ---- evaluations ---- */

static void step_in_lambda(const struct vfm_solver_plan *p, struct vfm_solver_eval *e)
{
	int64_t i = e->level;
	double h;

	vfm_diffusion_denoise(&p->d, e->noise, &e->pred[0], &e->pred[1]);
	e->state[0] = 1;
	if (p->kind == VFM_SOLVER_UNIPC) {
		if (i > 0)
			uni_step(p, i - 1, (int)unipc_order(p, i - 1), true, e->state);
		uni_step(p, i, (int)unipc_order(p, i), false, e->point);
		return;
	}
	h = lambda_at(p, i + 1) - lambda_at(p, i);
	first_order_step(p, i, h, &e->state[0], &e->state[1]);
	if (i > 0 && i < p->steps - 1)
		add_two_step(p, i, h, e->state);
	e->point[0] = 1;
}

/* euler  x_t = x + (l_t - l_s) d, with d = dx/dl: F for flow, (x - D) / sigma for edm.
 * heun   the trapezoidal rule with a second evaluation at the euler point; the last step is of euler. */
static void step_in_noise(const struct vfm_solver_plan *p, int64_t k, struct vfm_solver_eval *e)
{
	bool corrects = p->kind == VFM_SOLVER_HEUN && k % 2 == 1;
	int64_t i = corrects ? e->level - 1 : e->level;
	double dt = p->noise[i + 1] - p->noise[i], a, b;

	if (p->d.kind == VFM_FLOW) {
		e->pred[1] = 1;
	} else { /* d = (y - (a y + b F)) / sigma */
		vfm_diffusion_denoise(&p->d, e->noise, &a, &b);
		e->pred[0] = (1 - a) / e->noise;
		e->pred[1] = -b / e->noise;
	}
	e->state[0] = e->point[0] = 1;
	if (corrects)
		e->state[1] = e->state[2] = dt / 2;
	else if (p->kind == VFM_SOLVER_HEUN && i < p->steps - 1)
		e->point[1] = dt;
	else
		e->state[1] = dt;
}

void vfm_solver_at(const struct vfm_solver_plan *p, int64_t k, struct vfm_solver_eval *e)
{
	int64_t level = p->kind == VFM_SOLVER_HEUN ? (k + 1) / 2 : k;

	*e = (struct vfm_solver_eval){.level = level, .noise = p->noise[level], .t_cond = p->t_cond[level]};
	if (uses_lambda(p->kind))
		step_in_lambda(p, e);
	else
		step_in_noise(p, k, e);
}
