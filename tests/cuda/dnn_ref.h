/* dnn_ref.h - cudnn_graph.h on the host (dnn_ref.c), and controls for tests. */
#ifndef TESTS_CUDA_DNN_REF_H
#define TESTS_CUDA_DNN_REF_H

#include "cuda/cudnn_graph.h"

extern bool dnn_ref_no_plans; /* building any graph fails */

#endif
