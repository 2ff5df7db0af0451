# docs/speed.png from docs/speed.dat: gnuplot docs/speed.gp, in the top folder.
set terminal pngcairo noenhanced size 760,330 font "sans,11"
set output "docs/speed.png"
set encoding utf8
set style data histograms
set style histogram clustered gap 1
set style fill solid
set boxwidth 0.9
set yrange [0:1.5]
set ylabel "speed, cuDNN = 1"
set xlabel "causal prefill, sequence length"
set title "H200, bf16, 32/8 heads of 128"
set key outside right
set grid y
plot "docs/speed.dat" using 2:xtic(1) title "fa3_like" linecolor rgb "#1b6ca8", \
     "" using 3 title "FlashAttention-3" linecolor rgb "#e08e45", \
     "" using 4 title "cuDNN" linecolor rgb "#9a9a9a", \
     "" using 0:2:2 with labels offset -3.2,0.6 font ",9" notitle
