/* fault.h - reports of invalid indices by kernels, without blocking.
 *
 * A device has one word per op in pinned host memory, initially 0.  A kernel that reads an index outside the tensor
 * treats it as "no row" and writes the word of its op (kern.h, row_of).  stream_sync and event_sync check the words and
 * return the error that the CPU would have returned.  Words are never reset.
 */
#ifndef VFM_DEVICE_CUDA_FAULT_H
#define VFM_DEVICE_CUDA_FAULT_H

#include <stdint.h>

#include "base/err.h"

/* Checks words [VFM_OP_N].  Returns 0, or VFM_EUSAGE with a message for each op: "index_select: an index is 9, but
 * there are 3 rows". */
int vfm_faults_check(const volatile uint64_t *words, struct vfm_err *err);

#endif
