/* mirror.h - a device seen through host memory, so that tests may look straight at the operands of ops.
 *
 * alloc gives host memory.  Each op copies what it is given to the device behind it (whole allocations, guards
 * included; operands that overlap stay so), runs there, waits, and copies all of it back.  Boundaries that a test
 * leaves out (dev_cu, seg) are made from `cu`.
 */
#ifndef VFM_TESTS_OPS_MIRROR_H
#define VFM_TESTS_OPS_MIRROR_H

#include "dev/dev.h"

/* Owns `real` and its stream `rs`, also on failure; freed by dev->t->dev_free. */
struct vfm_dev *vfm_mirror_open(struct vfm_dev *real, struct vfm_stream *rs, struct vfm_err *err);

#endif
