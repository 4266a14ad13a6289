/* dnn_ref.h - cudnn_graph.h on the host (dnn_ref.c), and controls for tests. */
#ifndef TESTS_CUDA_DNN_REF_H
#define TESTS_CUDA_DNN_REF_H

#include "device/cuda/cudnn_graph.h"

extern bool dnn_ref_no_plans; /* building any graph fails */

/* Forms of attention: sets of them are refused when the graph is built, or when it runs.  A graph that neither lacks
 * nor has offsets and so on belongs to one form. */
enum {
	DNN_REF_PLAIN = 1,        /* no offsets, lse in rows */
	DNN_REF_APART = 2,        /* no offsets, lse by samples */
	DNN_REF_PACKED = 4,       /* offsets, lse in rows */
	DNN_REF_PACKED_APART = 8, /* offsets, lse by samples */
	DNN_REF_UNIFIED = 16,     /* one operation */
	DNN_REF_FORMS = 31,
};
extern int dnn_ref_refuse_build, dnn_ref_refuse_run;
extern int dnn_ref_ran;   /* the set of forms that have run */
extern int dnn_ref_built; /* graphs that have been built */

/* Errors of a set of forms, which run all the same. */
enum dnn_ref_error {
	DNN_REF_BASE2 = 1, /* lse is a logarithm in base 2 */
	DNN_REF_SWAPPED,   /* lse has the rows of a head one after another, in each sample */
	DNN_REF_LAST_ROW,  /* the last row of each sample of o, or of each gradient, is zero */
	DNN_REF_TWICE,     /* dk and dv are twice as large; not with shared heads of keys */
};
extern enum dnn_ref_error dnn_ref_error;
extern int dnn_ref_wrong;      /* the set of forms */
extern int dnn_ref_wrong_plan; /* only this plan of theirs; -1: all */

/* Plans of a graph for which several are requested, and the microseconds that each takes; negative: it is refused. */
enum { DNN_REF_PLANS = 4 };
extern int dnn_ref_plans, dnn_ref_us[DNN_REF_PLANS];
extern int dnn_ref_used; /* the last plan that ran */
/* Seconds that plans have taken: the clock of events (dev_stub.h), so that the load of the machine does not matter. */
extern double dnn_ref_now;

#endif
