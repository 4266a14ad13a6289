/* scene_weights.h - the models of scene.c, printed by bench/shots-calibrate; included there alone. */
#ifndef VFM_MEDIA_SCENE_WEIGHTS_H
#define VFM_MEDIA_SCENE_WEIGHTS_H

static const struct model models[] = {
	[VFM_CUT_HARD] = {-15.045f,
		{7.002f, 5.242f, 10.756f, 9.758f, 1.931f, -0.369f, 3.769f, -2.888f, 2.024f, 0.055f, -0.398f, -3.086f,
			-1.914f, 1.550f, -5.764f, -6.687f, 1.189f, -0.202f, 0.135f, -4.577f, 1.295f, 0.796f, -0.592f,
			-0.668f}},
	[VFM_CUT_DISSOLVE] = {-2.726f,
		{2.268f, -1.036f, 3.853f, -8.369f, -11.107f, 1.278f, 0.545f, -2.371f, -0.028f, 1.961f, 3.145f, -3.256f,
			-0.226f, 1.075f, 4.574f, -3.745f, 1.583f, 4.902f, 0, 0, 0, 0, 0, 0}},
	[VFM_CUT_FADE] = {-0.671f,
		{2.133f, -1.288f, 0.201f, 3.604f, 4.098f, 1.063f, 0.674f, 1.855f, -6.847f, -5.543f, 0, 0, 0, 0, 0, 0, 0,
			0, 0, 0, 0, 0, 0, 0}},
};

#endif
