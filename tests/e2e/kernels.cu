// Kernels of every kind that gets a name: templates, a namespace, a plain one; launched from two functions.
template <typename T> __global__ void scale(T *x, T a) {
    x[threadIdx.x] *= a;
}
__global__ void plain_kernel(float *x) {
    x[0] = 1;
}
namespace math {
__global__ void in_namespace(int *x, const float *y) {
    x[0] = (int)y[0];
}
} // namespace math

extern "C" void run_all(void) {
    float *f = nullptr;
    int *i = nullptr;
    scale<float><<<1, 32>>>(f, 2.0f);
    plain_kernel<<<1, 32>>>(f);
    math::in_namespace<<<1, 32>>>(i, f);
}

extern "C" void run_other(void) {
    scale<double><<<1, 32>>>((double *)nullptr, 2.0);
    plain_kernel<<<2, 32>>>((float *)nullptr);
}
