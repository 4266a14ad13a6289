/* mirror.h - a wrapper of a device whose memory is host memory, so that tests can read the operands of ops directly.
 *
 * alloc returns host memory.  Each op copies its operands to the device (whole allocations with their guards;
 * overlapping operands stay overlapping), runs there, waits, and copies everything back.  dev_cu and seg are made from
 * `cu` if a test leaves them out.
 */
#ifndef VFM_TESTS_OPS_MIRROR_H
#define VFM_TESTS_OPS_MIRROR_H

#include "device/dev/dev.h"

/* Owns `real` and its stream `rs`, also on errors; dev->t->dev_free frees it. */
struct vfm_dev *vfm_mirror_open(struct vfm_dev *real, struct vfm_stream *rs, struct vfm_err *err);

#endif
