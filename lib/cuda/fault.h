/* fault.h - an index that is none, met by a kernel: said without holding anybody.
 *
 * A device has a word for each op, in page-locked memory of the host, 0 as long as all is well.  A kernel that meets an
 * index outside the tensor takes it for no row and writes the op's word (kern.h, row_of).  Whoever waits for the device
 * looks at the words behind that (stream_sync, event_sync), and fails with what the CPU would have said.  Words are
 * never taken back.
 */
#ifndef VFM_CUDA_FAULT_H
#define VFM_CUDA_FAULT_H

#include <stdint.h>

#include "base/err.h"

/* words [VFM_OP_N].  0, or VFM_EUSAGE: "index_select: an index is 9, but there are 3 rows", one after another for every
 * op that met one. */
int vfm_faults_check(const volatile uint64_t *words, struct vfm_err *err);

#endif
