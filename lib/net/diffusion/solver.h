/* solver.h - solvers of the probability-flow ODE, as arithmetic on the host.  Local and thread-safe.
 *
 * A run visits noise levels l_0 > l_1 > ... > l_N = 0: t for flow, sigma for edm.  Each evaluation of the network, at a
 * point y with output F, makes one prediction h_0 (those before are h_1, h_2 ...).  All updates are linear combinations
 * (struct vfm_solver_eval), so a device needs only the op axpby:
 *
 *   h_0 = pred[0] y + pred[1] F
 *   x   = state[0] x + sum_j state[1+j] h_j      the state; it starts as n for flow (also if l_0 < 1), l_0 n for edm
 *   y   = point[0] x + sum_j point[1+j] h_j      the next point; after the last evaluation the sample
 *
 * A step leads from s to t, and h = lambda_t - lambda_s, with lambda = ln(alpha / sigma); flow: alpha = 1 - t, sigma =
 * t; edm: alpha = 1.  m_0, m_1 ... are the predictions of x0 at this level, the level before ...  phi_1(z) = (e^z - 1)
 * / z, phi_(k+1)(z) = (phi_k(z) - 1/k!) / z.
 *
 * euler  x_t = x + (l_t - l_s) d, with d = dx/dl: F for flow, (x - D) / sigma for edm.
 * heun   Karras et al. 2022 (arXiv 2206.00364), algorithm 1 without churn: the trapezoidal rule with a second
 *        evaluation at the euler point, 2 N - 1 evaluations; the last step is of euler.
 * dpm++  DPM-Solver++(2M), Lu et al. 2022 (arXiv 2211.01095), algorithm 2, r = (lambda_s - lambda_s1) / h:
 *        x_t = sigma_t/sigma_s x + alpha_t (1 - e^-h) (m_0 + (m_0 - m_1) / (2 r))
 * res    exponential Adams-Bashforth, Zhang et al. 2023 (arXiv 2308.02157), c = (lambda_s1 - lambda_s) / h:
 *        x_t = sigma_t/sigma_s x + alpha_t h (phi_1(-h) m_0 + phi_2(-h) (m_1 - m_0) / c)
 * unipc  UniPC of order p = 1, 2, 3 with B(h) = e^-h - 1 ("bh2"), Zhao et al. 2023 (arXiv 2302.04867), with
 *        r_k = (lambda_k - lambda_s) / h, k < p:
 *        x_t = sigma_t/sigma_s x - alpha_t (e^-h - 1) (m_0 + sum_k rho_k (m_k - m_0) / r_k)
 *        sum_k rho_k r_k^(i-1) = i! phi_(i+1)(-h) / phi_1(-h) for i = 1 ... p - 1; rho = 1/2 for p = 2.
 *        The corrector repeats the step with m_t, the prediction at its end, as a further term with r = 1, and
 *        i = 1 ... p; rho = 1/2 for p = 1.  m_t is the m_0 of the next step.
 *
 * The first step of a multistep solver has order 1, and so has the last, to l_N = 0: x = m_0.  unipc has order min(p, N
 * - i) in step i.
 *
 * Levels of flow, with S(u) = shift u / (1 + (shift - 1) u), i = 0 ... N - 1; the network's time is 1000 l_i:
 *   VFM_SCHEDULE_DEFAULT    l_i = S(1 - i/N); with shift_terminal = e, as in FlowMatchEulerDiscrete of diffusers,
 *                           l_i = 1 - (1 - S(1 - i/N)) (1 - e) / (1 - S(1/N)), which ends at e.
 *   VFM_SCHEDULE_DIFFUSERS  the levels of the solver's scheduler in diffusers, rounded to float32:
 *     euler, heun    FlowMatchEulerDiscrete, FlowMatchHeunDiscrete: l_i = S(1 + (S(1/1000) - 1) i / (N - 1))
 *     unipc          UniPCMultistep with use_flow_sigmas: l_i = S(1 - 0.999 i/N), time without its fraction
 *     dpm++          DPMSolverMultistep with use_flow_sigmas: l_i = S(0.999 (1 - i/N)), time without its fraction
 * lambda is infinite at t = 1: dpm++, res and unipc replace levels above 1 - 1e-6 by it.  Levels of edm: (smax^(1/rho)
 * + i/(N-1) (smin^(1/rho) - smax^(1/rho)))^rho, Karras et al. 2022, equation 5.
 */
#ifndef VFM_NET_DIFFUSION_SOLVER_H
#define VFM_NET_DIFFUSION_SOLVER_H

#include "base/err.h"
#include "net/diffusion/diffusion.h"

enum vfm_solver_kind {
	VFM_SOLVER_AUTO, /* heun for edm, euler for flow */
	VFM_SOLVER_EULER,
	VFM_SOLVER_HEUN,
	VFM_SOLVER_UNIPC,
	VFM_SOLVER_DPMPP,
	VFM_SOLVER_RES,
	VFM_SOLVER_KINDS
};
enum vfm_solver_schedule { VFM_SCHEDULE_DEFAULT, VFM_SCHEDULE_DIFFUSERS };
enum { VFM_SOLVER_HISTORY = 4, VFM_SOLVER_MAX_STEPS = 100000 };

struct vfm_solver {
	int kind;     /* enum vfm_solver_kind */
	int schedule; /* enum vfm_solver_schedule; edm has only the default */
	int64_t steps;
	int64_t order;                    /* of unipc: 1 to 3 */
	double shift;                     /* flow; 0: that of the diffusion */
	double shift_terminal;            /* flow, default schedule: the last level; 0: that of S */
	double sigma_min, sigma_max, rho; /* edm */
};
void vfm_solver_defaults(struct vfm_solver *s); /* auto, 32 steps, order 2; sigmas 0.002 to 80, rho 7 */
/* Returns VFM_EUSAGE for invalid settings, among them so many steps that two levels coincide. */
int vfm_solver_check(const struct vfm_solver *s, const struct vfm_diffusion *d, struct vfm_err *err);

/* A run of a solver. */
struct vfm_solver_plan {
	int kind; /* not auto */
	int64_t order;
	struct vfm_diffusion d;
	int64_t steps, evals; /* evaluations of the network */
	int history;          /* predictions that the combinations use, h_0 included; at most VFM_SOLVER_HISTORY */
	double start;         /* standard deviation of the first state */
	double *noise;        /* [steps + 1]: the levels */
	float *t_cond;        /* [steps]: the network's time input at each level */
};
/* Checks as vfm_solver_check.  The caller releases the plan, also after a failure. */
int vfm_solver_plan_make(
	struct vfm_solver_plan *p, const struct vfm_solver *s, const struct vfm_diffusion *d, struct vfm_err *err);
void vfm_solver_plan_release(struct vfm_solver_plan *p);

/* Evaluation k = 0 ... evals - 1 and the combinations after it.  A coefficient of a prediction that does not exist yet
 * is 0. */
struct vfm_solver_eval {
	int64_t level;
	double noise;
	float t_cond;
	double pred[2], state[1 + VFM_SOLVER_HISTORY], point[1 + VFM_SOLVER_HISTORY];
};
void vfm_solver_at(const struct vfm_solver_plan *p, int64_t k, struct vfm_solver_eval *e);

#endif
