/* dnn_ref.h - cudnn_graph.h, computed on the host (dnn_ref.c), and what only a test asks of it. */
#ifndef TESTS_CUDA_DNN_REF_H
#define TESTS_CUDA_DNN_REF_H

#include "cuda/cudnn_graph.h"

extern bool dnn_ref_no_plans; /* no graph can be built */

#endif
