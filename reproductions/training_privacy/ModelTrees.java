import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.io.PrintStream;

import weka.classifiers.trees.LMT;
import weka.core.Instances;

/**
 * Trains Weka's logistic model trees, default options, on sets of rows of an ARFF file.
 *
 * <p>Each line of the input names rows to train on, a semicolon, and rows to predict, counted from
 * 0. Each line of the output has the probabilities of all classes of one predicted row.
 *
 * <p>java -cp weka.jar ModelTrees.java records.arff &lt; sets.txt
 */
public final class ModelTrees {
  public static void main(String[] given) throws Exception {
    Instances all = new Instances(new BufferedReader(new FileReader(given[0])));
    all.setClassIndex(all.numAttributes() - 1);
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    PrintStream out = System.out;
    System.setOut(System.err); // whatever Weka prints is no prediction
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] sides = line.split(";");
      Instances rows = new Instances(all, 0);
      for (String row : sides[0].trim().split(" ")) {
        rows.add(all.instance(Integer.parseInt(row)));
      }
      LMT tree = new LMT();
      tree.buildClassifier(rows);
      StringBuilder said = new StringBuilder();
      for (String row : sides[1].trim().split(" ")) {
        String gap = "";
        for (double p : tree.distributionForInstance(all.instance(Integer.parseInt(row)))) {
          said.append(gap).append(p);
          gap = " ";
        }
        said.append('\n');
      }
      out.print(said);
      out.flush();
    }
  }
}
