/* loss.cu - the mean squared error. */
#include "device/cuda/kern/fold.h"

struct mse_args {
	const float *target, *w;
	const int32_t *seg;
	double *row; /* [T]: mean of the squares of a row */
	int64_t rows, f;
	int lanes; /* threads that share a row */
	float inv_f;
};

template <int N, class T> __global__ __launch_bounds__(256) static void mse(const mse_args a, const T *pred, T *dpred)
{
	int lane = (int)threadIdx.x % a.lanes, here = 256 / a.lanes;

	for (int64_t t0 = (int64_t)blockIdx.x * here; t0 < a.rows; t0 += (int64_t)gridDim.x * here) {
		int64_t t = t0 + (int)threadIdx.x / a.lanes;
		bool on = t < a.rows;
		float k = on && dpred ? 2 * a.w[a.seg[t]] * a.inv_f : 0.0f, sum = 0;

		for (int64_t i = (int64_t)lane * N; on && i < a.f; i += (int64_t)a.lanes * N) {
			vec<N> p = ld_vec<N>(pred + t * a.f + i), y = ld_vec<N>(a.target + t * a.f + i);

#pragma unroll
			for (int j = 0; j < N; j++) {
				float d = p.v[j] - y.v[j];

				sum = fmaf(d, d, sum);
				p.v[j] = k * d;
			}
			if (dpred)
				st_vec<N>(dpred + t * a.f + i, p);
		}
		sum = lanes_sum(sum, a.lanes);
		if (on && lane == 0)
			a.row[t] = (double)sum / (double)a.f;
	}
}

template <int N> static void launch_mse(struct vfm_stream *s, const struct vfm_mse *o, mse_args a)
{
	int64_t blocks, most = (int64_t)vfm_cuda_sms(s) * 8;

	a.lanes = lanes_for(a.f / N);
	blocks = ceil_div(a.rows, 256 / a.lanes);
	VFM_ACT_TYPE(o->pred.dtype, T,
		VFM_LAUNCH(s, (mse<N, T>), blocks < most ? blocks : most, 256, 0, a, (const T *)o->pred.data,
			vfm_has(&o->dpred) ? (T *)o->dpred.data : (T *)NULL));
}

extern "C" int vfm_cuda_mse(struct vfm_stream *s, const struct vfm_mse *o, struct vfm_err *err)
{
	int64_t rows = o->pred.shape[0], f = o->pred.shape[1];
	double *ws = (double *)vfm_cuda_ws(s, fold_ws(rows, o->seqs), err);
	mse_args a = {(const float *)o->target.data, (const float *)o->w.data, (const int32_t *)o->seqs->seg.data, ws,
		rows, f, 0, 1.0f / (float)f};

	if (!ws)
		return VFM_EENV;
	if (rows && vec_ok(&o->pred, 8) && vec_ok(&o->target, 8) && (!vfm_has(&o->dpred) || vec_ok(&o->dpred, 8)))
		launch_mse<8>(s, o, a);
	else if (rows)
		launch_mse<1>(s, o, a);
	fold_row_sums(s, ws, rows, o->seqs, a.w, (double *)o->loss.data,
		vfm_has(&o->sample_loss) ? (float *)o->sample_loss.data : NULL,
		vfm_has(&o->unweighted) ? (double *)o->unweighted.data : NULL);
	return vfm_cuda_launched(s, "mse", err);
}
