"""shots_plain.py - drawn shots with little texture, for bench/shots-make --plain: counters and digits on one colour,
slides, and skies that are zoomed.  Each function returns the n frames of one shot."""
import cv2
import numpy as np

FONTS = (cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_TRIPLEX, cv2.FONT_HERSHEY_PLAIN,
         cv2.FONT_HERSHEY_COMPLEX)
WORDS = "the plan of a new model and its data for every step we take loss rate frames per second more results".split()


def draw_background(rng, size):
    """A colour, or a faint gradient of it: light, grey, dark or tinted."""
    level = rng.choice([rng.uniform(225, 256), rng.uniform(60, 225), rng.uniform(0, 60)])
    tint = rng.uniform(-40, 40, 3) * (rng.random() < 0.4)
    y, x = np.mgrid[0:size[1], 0:size[0]] / max(size) - 0.3
    slope = rng.normal(0, 12, 2) * (rng.random() < 0.3)
    return np.clip(level + tint + (slope[0] * x + slope[1] * y)[..., None], 0, 255).astype(np.uint8)


def draw_ink(rng, back):
    """A colour that is seen on the background."""
    mean = back.mean()
    level = rng.uniform(0, max(1, mean - 90)) if mean > 128 else rng.uniform(mean + 90, 255)
    return [float(np.clip(c, 0, 255)) for c in level + rng.uniform(-50, 50, 3)]


def write(frame, text, x, y, height, font, ink):
    """Writes text of a height in pixels; x, y in 0..1 place it."""
    (w, h), _ = cv2.getTextSize(text, font, 1, 1)
    scale = min(height / h, 0.95 * frame.shape[1] / w)
    at = (int((frame.shape[1] - w * scale) * x), int(h * scale + (frame.shape[0] - h * scale) * y))
    cv2.putText(frame, text, at, font, scale, ink, max(1, int(round(height / 9))), cv2.LINE_AA)


def finish(rng, frames):
    """Adds the noise of a camera to some."""
    noise = float(rng.choice([0, 0, 1, 2]))
    out = []
    for f in frames:
        g = f + cv2.randn(np.empty(f.shape, np.float32), 0, noise) if noise else f
        out.append(np.clip(g, 0, 255).astype(np.uint8))
    return out


def draw_number(rng, size, n, fps, height):
    """A number that counts up or down, of a height as a share of the picture's."""
    back = draw_background(rng, size)
    ink, font, x, y = draw_ink(rng, back), FONTS[rng.integers(len(FONTS))], rng.random(), rng.random()
    form = ("%d", "%02d", "0:%02d", "%d %%", "Frame %d")[rng.integers(5)]
    every = max(1, int(rng.choice([1, fps / 4, fps / 2, fps, fps])))
    value, step = int(rng.integers(0, rng.choice([10, 100]))), int(rng.choice([1, -1]))
    if rng.random() < 0.5:  # one digit, in the middle
        form, x, y, value, step = "%d", 0.5, 0.5, int(rng.integers(0, 3)), 1
    label = " ".join(rng.choice(WORDS, 3)) if rng.random() < 0.3 else None
    frames = []
    for i in range(n):
        if i % every == 0 or not frames:
            f = back.copy()
            write(f, form % abs(value + step * (i // every)), x, y, height * size[1], font, ink)
            if label:
                write(f, label, 0.5, 0.95 if y < 0.5 else 0.05, 0.06 * size[1], font, ink)
        frames.append(f)
    return finish(rng, frames)


def draw_counter(rng, size, n, fps):
    return draw_number(rng, size, n, fps, rng.uniform(0.03, 0.14))


def draw_digits(rng, size, n, fps):
    return draw_number(rng, size, n, fps, rng.uniform(0.25, 0.95))


def draw_slide(rng, size, n, fps):
    """A title, and lines that appear one by one."""
    back = draw_background(rng, size)
    ink, font, lines = draw_ink(rng, back), FONTS[rng.integers(len(FONTS))], int(rng.integers(1, 6))
    starts = np.sort(rng.integers(0, max(1, n - 8), lines)) if rng.random() < 0.7 else np.zeros(lines, int)
    x = rng.uniform(0.05, 0.3)
    write(back, " ".join(rng.choice(WORDS, 2)).upper(), x, 0.08, 0.09 * size[1], font, ink)
    frames = []
    for i in range(n):
        for k in np.flatnonzero(starts == i):
            back = back.copy()
            words = " ".join(rng.choice(WORDS, rng.integers(3, 6)))
            write(back, "- " + words, x, 0.28 + 0.14 * k, 0.06 * size[1], font, ink)
        frames.append(back)
    return finish(rng, frames)


def draw_sky(rng, size, n, fps):
    """A sky with faint clouds and maybe something small in it; the camera zooms, or turns slowly, or neither."""
    w, h = 2 * size[0], 2 * size[1]
    low, high = rng.uniform(60, 235, 3), rng.uniform(-45, 45, 3) * rng.uniform(0.1, 1)
    y = np.linspace(0, 1, h, dtype=np.float32)[:, None, None]
    sky = np.broadcast_to(low + high * y, (h, w, 3)).astype(np.float32)
    clouds = cv2.resize(rng.normal(0, 1, (h // 40, w // 40)).astype(np.float32), (w, h), interpolation=cv2.INTER_CUBIC)
    sky = sky + rng.uniform(0, 10) * (rng.random() < 0.6) * clouds[..., None]
    sky = np.ascontiguousarray(np.clip(sky, 0, 255).astype(np.uint8))
    if rng.random() < 0.6:  # a bird, a lamp, the sun
        at = (int(w * rng.uniform(0.3, 0.7)), int(h * rng.uniform(0.3, 0.7)))
        colour = [float(c) for c in (rng.uniform(0, 60, 3) if rng.random() < 0.6 else rng.uniform(220, 255, 3))]
        axes = (int(w * rng.uniform(0.005, 0.06)), int(w * rng.uniform(0.005, 0.04)))
        cv2.ellipse(sky, at, axes, rng.uniform(0, 180), 0, 360, colour, -1, cv2.LINE_AA)
    zoom = np.geomspace(*(rng.uniform(1, 3, 2) if rng.random() < 0.75 else (1.3, 1.3)), n)
    x, y = (np.linspace(*rng.uniform(0.2, 0.8, 2), n) if rng.random() < 0.4 else np.full(n, 0.5) for _ in range(2))
    frames = []
    for i in range(n):
        scale = w / size[0] / zoom[i]
        m = np.array([[scale, 0, (w - scale * size[0]) * x[i]], [0, scale, (h - scale * size[1]) * y[i]]], np.float32)
        frames.append(cv2.warpAffine(sky, m, size, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
                                     borderMode=cv2.BORDER_REFLECT))
    return finish(rng, frames)
