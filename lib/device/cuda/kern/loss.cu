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
	a.lanes = lanes_for(a.f / N, 32);
	VFM_ACT_TYPE(o->pred.dtype, T,
		VFM_LAUNCH(s, (mse<N, T>), grid_of(s, ceil_div(a.rows, 256 / a.lanes), 8), 256, 0, a,
			(const T *)o->pred.data, data_of<T>(o->dpred)));
}

extern "C" int vfm_cuda_mse(struct vfm_stream *s, const struct vfm_mse *o, struct vfm_err *err)
{
	int64_t rows = o->pred.shape[0], f = o->pred.shape[1];
	double *ws = (double *)vfm_cuda_ws(s, fold_ws(rows, o->seqs), err);
	mse_args a = {(const float *)o->target.data, (const float *)o->w.data, (const int32_t *)o->seqs->seg.data, ws,
		rows, f, 0, 1.0f / (float)f};

	if (!ws)
		return VFM_EENV;
	if (rows)
		VFM_WIDTH(vec_ok(8, &o->pred, &o->target, &o->dpred), 8, N, launch_mse<N>(s, o, a));
	fold_row_sums(s, ws, rows, o->seqs, a.w, (double *)o->loss.data, data_of<float>(o->sample_loss),
		data_of<double>(o->unweighted));
	return vfm_cuda_launched(s, "mse", err);
}
