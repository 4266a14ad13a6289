/* cpu_attn.h - attention on the CPU, forward and backward, over packed samples of any length.
 *
 * The score matrix exists only as a tile of BK keys by BQ queries per thread (online softmax:
 * Milakov & Gimelshein, arXiv 1805.02867; tiling and backward: Dao, arXiv 2307.08691).  Besides a
 * fixed scratch per thread, the backward of samples of more than KS keys takes one f32 copy of
 * their dq from the stream's device.
 *
 * Results are bitwise the same from run to run and for any number of threads: how the work is cut
 * depends on shapes alone, and gradients that several items add to are added in a fixed order.
 * They differ between instruction sets, to rounding.
 *
 * bf16 operands are multiplied as bf16 where the CPU has avx512_bf16, else converted tile by tile
 * and computed in f32; sums and softmax are f32 in both.  Operands have been checked by vfm_op_attn.
 */
#ifndef VFM_CPU_CPU_ATTN_H
#define VFM_CPU_CPU_ATTN_H

#include "ops/ops.h"

int vfm_cpu_attn(struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err);
int vfm_cpu_attn_bwd(struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err);

#endif
