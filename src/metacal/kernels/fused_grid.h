/* Numbers moved to the points of a grid: scores for good, as kernels/grid.py has it, and log-odds for a spline. */

#include <stdint.h>

/* The grid point nearest to x, the lower one of two; NaN and infinities stay. */
static double grid_point(double x, int dropped, double floor, double step) {
    const double size = fabs(x);
    if (!(size <= DBL_MAX)) return x;
    if (size < floor) {
        const double steps = x / step, nearest = rint(steps);
        return (nearest - steps == 0.5 ? nearest - 1.0 : nearest) * step;
    }
    uint64_t bits;
    double found;
    memcpy(&bits, &x, sizeof bits);
    bits += (bits >> 63) + (((uint64_t)1 << (dropped - 1)) - 1);
    bits &= ~(((uint64_t)1 << dropped) - 1);
    memcpy(&found, &bits, sizeof found);
    return found > DBL_MAX ? DBL_MAX : found < -DBL_MAX ? -DBL_MAX : found;
}

/* The weight of rows, and the weight of right ones among them. */
typedef double weight_pair __attribute__((vector_size(16), aligned(8)));

/* Each row's weight, and the weight of right rows, at the two points beside its z, within ±reach, in the share that keeps
   z on average: sums[c] belongs to the point (low + c) · grid. */
static void add_on_grid(
    const double *z, const double *right, const double *weights, Py_ssize_t n, double grid, double reach, double low,
    Py_ssize_t size, weight_pair *sums
) {
    memset(sums, 0, (size_t)size * sizeof *sums);
    const double end = low + (double)(size - 1);
    for (Py_ssize_t i = 0; i < n; i++) {
        /* Two steps, each of which is one instruction and no jump. */
        const double below = z[i] < reach ? z[i] : reach, clipped = below > -reach ? below : -reach;
        const double place = clipped / grid, w = weights ? weights[i] : 1.0;
        /* None is left out: the points reach from -reach to reach. Compared before the cast, which is defined only for
           a number that the integer can hold. */
        if (!(place >= low && place < end)) continue;
        /* A cast rounds towards zero. It takes less time than `floor`, a call where SSE4.1 may be missing. */
        const int64_t towards_zero = (int64_t)place;
        const double cell = (double)(towards_zero - (place < (double)towards_zero)), share = place - cell;
        const Py_ssize_t at = (Py_ssize_t)(cell - low);
        const weight_pair own = {w, w * right[i]}, shares = {share, share}, beyond = own * shares;
        sums[at] += own - beyond;
        sums[at + 1] += beyond;
    }
}
