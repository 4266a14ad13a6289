/* solver.h - solvers of the probability-flow ODE, as arithmetic on the host.  Local and thread-safe.
 *
 * A run visits noise levels l_0 > l_1 > ... > l_N = 0: t for flow, sigma for edm.  Each evaluation of the network, at a
 * point y with output F, makes one prediction h_0; earlier predictions are h_1, h_2 ...  All updates are linear
 * combinations (struct vfm_solver_eval), so a device needs only the op axpby:
 *
 *   h_0 = pred[0] y + pred[1] F
 *   x   = state[0] x + sum_j state[1+j] h_j      the state; it starts as n for flow (also if l_0 < 1, but see
 *                                                karras in solver.c), as l_0 n for edm
 *   y   = point[0] x + sum_j point[1+j] h_j      the next point; after the last evaluation the sample
 *
 * The formulas of the solvers and of the levels are in solver.c, next to their code.
 */
#ifndef VFM_NET_DIFFUSION_SOLVER_H
#define VFM_NET_DIFFUSION_SOLVER_H

#include "base/err.h"
#include "net/diffusion/diffusion.h"

enum vfm_solver_kind {
	VFM_SOLVER_AUTO, /* heun for edm, euler for flow */
	VFM_SOLVER_EULER,
	VFM_SOLVER_HEUN,  /* Karras et al. 2022 (arXiv 2206.00364), algorithm 1 without churn: 2 N - 1 evaluations */
	VFM_SOLVER_UNIPC, /* UniPC of order 1 to 3 with B(h) = e^-h - 1 ("bh2"), Zhao et al. 2023 (arXiv 2302.04867) */
	VFM_SOLVER_DPMPP, /* DPM-Solver++(2M), Lu et al. 2022 (arXiv 2211.01095), algorithm 2 */
	VFM_SOLVER_RES,   /* exponential Adams-Bashforth, Zhang et al. 2023 (arXiv 2308.02157) */
	VFM_SOLVER_KINDS
};
/* DIFFUSERS: the levels of the solver's scheduler in diffusers, rounded to float32; not available for res.  KARRAS: the
 * levels of edm as times of flow (Cosmos-Predict). */
enum vfm_solver_schedule { VFM_SCHEDULE_DEFAULT, VFM_SCHEDULE_DIFFUSERS, VFM_SCHEDULE_KARRAS };
enum { VFM_SOLVER_HISTORY = 4, VFM_SOLVER_MAX_STEPS = 100000 };

struct vfm_solver {
	int kind;     /* enum vfm_solver_kind */
	int schedule; /* enum vfm_solver_schedule; edm has only the default */
	int64_t steps;
	int64_t order; /* of unipc: 1 to 3 */
	double shift;  /* flow; 0: the shift of the diffusion */
	/* flow, default schedule: the last level above 0; 0: as the shift gives it */
	double shift_terminal;
	double sigma_min, sigma_max, rho; /* edm, and the schedule karras */
};
void vfm_solver_defaults(struct vfm_solver *s); /* auto, 32 steps, order 2; sigmas 0.002 to 80, rho 7 */
/* VFM_EUSAGE: invalid settings, including so many steps that two levels coincide. */
int vfm_solver_check(const struct vfm_solver *s, const struct vfm_diffusion *d, struct vfm_err *err);

/* A run of a solver. */
struct vfm_solver_plan {
	int kind; /* not auto */
	int64_t order;
	struct vfm_diffusion d;
	int64_t steps, evals; /* evaluations of the network */
	int history;          /* predictions that the combinations use, including h_0; at most VFM_SOLVER_HISTORY */
	double start;         /* standard deviation of the first state */
	double *noise;        /* [steps + 1]: the levels */
	float *t_cond;        /* [steps]: the network's time input at each level */
};
/* Checks like vfm_solver_check.  The caller releases the plan, even after a failure. */
int vfm_solver_plan_make(
	struct vfm_solver_plan *p, const struct vfm_solver *s, const struct vfm_diffusion *d, struct vfm_err *err);
void vfm_solver_plan_release(struct vfm_solver_plan *p);

/* Evaluation k = 0 ... evals - 1 and the combinations after it.  Coefficients of predictions that do not exist yet are
 * 0. */
struct vfm_solver_eval {
	int64_t level;
	double noise;
	float t_cond;
	double pred[2], state[1 + VFM_SOLVER_HISTORY], point[1 + VFM_SOLVER_HISTORY];
};
void vfm_solver_at(const struct vfm_solver_plan *p, int64_t k, struct vfm_solver_eval *e);

#endif
