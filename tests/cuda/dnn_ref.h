/* dnn_ref.h - cudnn_graph.h on the host (dnn_ref.c), and controls for tests. */
#ifndef TESTS_CUDA_DNN_REF_H
#define TESTS_CUDA_DNN_REF_H

#include "cuda/cudnn_graph.h"

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
	DNN_REF_CONV = 32, /* no attention, but a convolution */
};
extern int dnn_ref_refuse_build, dnn_ref_refuse_run;
extern int dnn_ref_ran; /* the set of forms that have run */

#endif
