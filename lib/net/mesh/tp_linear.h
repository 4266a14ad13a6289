/* tp_linear.h - tensor-parallel linear layers with sequence parallelism (Shoeybi et al., arXiv 1909.08053; Korthikanti
 * et al., arXiv 2205.05198).
 *
 *     h [own rows, D] -> column -> [all rows, F / tp] -> row -> [own rows, D]
 *
 * "All rows" are those of this rank's cp coordinate; l->tok->rows_tp gives the share of each tp rank, which may be
 * empty.  l must stay alive until the backward has passed.  All calls are collective over tp; over one rank a layer is
 * vfm_g_linear.
 *
 * With a communication stream (mesh->comm_stream), each op overlaps its collective with its products.  Results do not
 * change if the device's products have the same bits when computed in chunks of rows.
 */
#ifndef VFM_NET_MESH_TP_LINEAR_H
#define VFM_NET_MESH_TP_LINEAR_H

#include "net/mesh/attn.h"
#include "net/mesh/mops.h"
#include "net/tape/gops.h"

enum { VFM_TP_COLUMN_LAYERS = 3 }; /* maximum after one gather */

/* x [own rows, D] -> all rows [rows, D].  Backward: reduce-scatter. */
struct vfm_var *vfm_tp_gather(struct vfm_tape *t, const struct vfm_attn_layout *l, struct vfm_var *x);
/* y[i] = act(gather(x) w^T + b), x [own rows, D] -> y[i] [rows, out], with args[i], i < n.  The layers share one
 * gather, and one reduce-scatter in the backward. */
void vfm_tp_column(struct vfm_tape *t, const struct vfm_attn_layout *l, struct vfm_var *x,
	const struct vfm_linear_args *args, int n, struct vfm_var **y);
/* x [rows, in] -> y [own rows, out], this rank's share of the sum over tp of x w^T + b.  In args, one rank has the
 * bias, and no rank has an activation.  Backward: all-gather. */
struct vfm_var *vfm_tp_row(
	struct vfm_tape *t, const struct vfm_attn_layout *l, struct vfm_var *x, const struct vfm_linear_args *args);

#endif
